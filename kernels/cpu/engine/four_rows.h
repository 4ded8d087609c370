// Four vectors at a time, one of each of four rows: what quantising a group of rows needs beyond simd.h.
#pragma once

#include "simd.h"

namespace imp {

#if IMP_LANES_512

// out[i] = the largest lane of vector i.
IMP_INLINE void largest_lanes(const Floats* rows, float* out) {
    const auto pairs = [](__m512 a, __m512 b) { return _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
    const __m512d ab = _mm512_castps_pd(pairs(rows[0].v, rows[1].v)), cd = _mm512_castps_pd(pairs(rows[2].v, rows[3].v));
    const __m512 all = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(out, _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
// To the nearest int8, ties to even; 4-byte group 4 l + i holds inputs 4 l .. 4 l + 3 of row i.
IMP_INLINE Bytes round_to_quads(const Floats* rows) {
    const __m512i ab = _mm512_packs_epi32(_mm512_cvtps_epi32(rows[0].v), _mm512_cvtps_epi32(rows[1].v));
    const __m512i cd = _mm512_packs_epi32(_mm512_cvtps_epi32(rows[2].v), _mm512_cvtps_epi32(rows[3].v));
    return {_mm512_packs_epi16(ab, cd)};
}
// The sum of each group's signed bytes.
IMP_INLINE void quad_sums(Bytes quads, int32_t* out) {
    _mm512_storeu_si512(out, _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), quads.v));
}
IMP_INLINE void store_bytes(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a.v); }

#elif defined(__AVX2__)

IMP_INLINE void largest_lanes(const Floats* rows, float* out) {
    const auto pairs = [](Floats x, Floats y) {
        const __m256 a = _mm256_max_ps(x.lo, x.hi), b = _mm256_max_ps(y.lo, y.hi);
        return _mm256_castps_pd(_mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)));
    };
    const __m256d ab = pairs(rows[0], rows[1]), cd = pairs(rows[2], rows[3]);
    const __m256 all = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)), _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    _mm_storeu_ps(out, _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
IMP_INLINE __m256i quads_of(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256i ab = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    return _mm256_packs_epi16(ab, _mm256_packs_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d)));
}
IMP_INLINE Bytes round_to_quads(const Floats* rows) {
    return {quads_of(rows[0].lo, rows[1].lo, rows[2].lo, rows[3].lo), quads_of(rows[0].hi, rows[1].hi, rows[2].hi, rows[3].hi)};
}
IMP_INLINE __m256i quad_sums_of(__m256i quads) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), quads), _mm256_set1_epi16(1));
}
IMP_INLINE void quad_sums(Bytes quads, int32_t* out) {
    _mm256_storeu_si256((__m256i*)out, quad_sums_of(quads.lo));
    _mm256_storeu_si256((__m256i*)(out + 8), quad_sums_of(quads.hi));
}
IMP_INLINE void store_bytes(uint8_t* p, Bytes a) {
    _mm256_storeu_si256((__m256i*)p, a.lo);
    _mm256_storeu_si256((__m256i*)(p + 32), a.hi);
}

#elif defined(__ARM_FEATURE_DOTPROD)

// Word l of row i to word i of row l.
IMP_INLINE void turn(uint32x4_t* rows) {
    const uint32x4_t a = vtrn1q_u32(rows[0], rows[1]), b = vtrn2q_u32(rows[0], rows[1]);
    const uint32x4_t c = vtrn1q_u32(rows[2], rows[3]), d = vtrn2q_u32(rows[2], rows[3]);
    const auto low = [](uint32x4_t x, uint32x4_t y) { return vcombine_u32(vget_low_u32(x), vget_low_u32(y)); };
    const auto high = [](uint32x4_t x, uint32x4_t y) { return vcombine_u32(vget_high_u32(x), vget_high_u32(y)); };
    rows[0] = low(a, c);
    rows[1] = low(b, d);
    rows[2] = high(a, c);
    rows[3] = high(b, d);
}
IMP_INLINE void largest_lanes(const Floats* rows, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = largest_lane(rows[i]);
}
IMP_INLINE Bytes round_to_quads(const Floats* rows) {
    uint32x4_t words[4];
    Bytes quads;
    for (int i = 0; i < 4; ++i) words[i] = vreinterpretq_u32_s8(rounded(rows[i]));
    turn(words);
    for (int i = 0; i < 4; ++i) quads.v[i] = vreinterpretq_u8_u32(words[i]);
    return quads;
}
IMP_INLINE void quad_sums(Bytes quads, int32_t* out) {
    for (int i = 0; i < 4; ++i) vst1q_s32(out + 4 * i, vdotq_s32(vdupq_n_s32(0), vreinterpretq_s8_u8(quads.v[i]), vdupq_n_s8(1)));
}
IMP_INLINE void store_bytes(uint8_t* p, Bytes a) {
    for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, a.v[i]);
}

#else

IMP_INLINE void largest_lanes(const Floats* rows, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = largest_lane(rows[i]);
}
IMP_INLINE Bytes round_to_quads(const Floats* rows) {
    Bytes quads;
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k) quads.v[16 * (k / 4) + 4 * i + k % 4] = uint8_t(int8_t(std::nearbyintf(rows[i].v[k])));
    return quads;
}
IMP_INLINE void quad_sums(Bytes quads, int32_t* out) {
    for (int g = 0; g < 16; ++g) {
        out[g] = 0;
        for (int k = 0; k < 4; ++k) out[g] += int8_t(quads.v[4 * g + k]);
    }
}
IMP_INLINE void store_bytes(uint8_t* p, Bytes a) { std::memcpy(p, a.v, 64); }

#endif

}  // namespace imp
