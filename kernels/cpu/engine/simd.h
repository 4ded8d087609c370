// Sixteen lanes of float, int32 or 4-byte groups on every instruction set, so that each kernel is written once.
//
// Invariant: fused(a, b, c) is one rounding where the hardware has FMA and two elsewhere, in every kernel alike.
// So all kernels of one build agree bit for bit; two builds need not.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX2__)
#define IMP_INLINE static inline __attribute__((always_inline))
#define IMP_UNROLL _Pragma("GCC unroll 16")
#else
// Forced inlining and unrolling of lane loops costs minutes of compile time and gains nothing.
#define IMP_INLINE static inline
#define IMP_UNROLL
#endif

namespace imp {

IMP_INLINE float half_to_float(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = h & 0x7fff;
    uint32_t bits = (magnitude << 13) + 0x38000000u;
    float value;
    if (magnitude >= 0x7c00) {
        bits += 0x38000000u;  // infinity and NaN
    } else if (magnitude < 0x0400) {
        value = float(magnitude) * 5.9604644775390625e-8f;  // subnormal: steps of 2^-24
        std::memcpy(&bits, &value, 4);
    }
    bits |= sign;
    std::memcpy(&value, &bits, 4);
    return value;
#endif
}

IMP_INLINE float bf16_to_float(uint16_t h) {
    const uint32_t bits = uint32_t(h) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Round to nearest even; NaN stays NaN.
IMP_INLINE uint16_t float_to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

IMP_INLINE float fused_scalar(float a, float b, float c) {
#if defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

#if defined(__AVX512F__)

struct Floats { __m512 v; };
struct Ints { __m512i v; };
struct Bytes { __m512i v; };

IMP_INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
IMP_INLINE void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
IMP_INLINE Floats splat(float a) { return {_mm512_set1_ps(a)}; }
IMP_INLINE Floats zeros() { return {_mm512_setzero_ps()}; }
IMP_INLINE Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
IMP_INLINE Floats sub(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
IMP_INLINE Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
IMP_INLINE Floats divide(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
IMP_INLINE Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
IMP_INLINE Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
IMP_INLINE Floats magnitude(Floats a) { return {_mm512_abs_ps(a.v)}; }
IMP_INLINE Floats fused(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
IMP_INLINE Floats negated_fused(Floats a, Floats b, Floats c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
// Lanes where a < bound become `other`.
IMP_INLINE Floats replace_below(Floats a, float bound, Floats value, float other) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, _mm512_set1_ps(bound), _CMP_LT_OQ), value.v, _mm512_set1_ps(other))};
}
// Lanes outside [first, end) become `other`.
IMP_INLINE Floats keep_range(Floats a, int first, int end, float other) {
    const uint32_t below_end = end >= 16 ? 0xffffu : end <= 0 ? 0u : (1u << end) - 1;
    const uint32_t below_first = first >= 16 ? 0xffffu : first <= 0 ? 0u : (1u << first) - 1;
    return {_mm512_mask_blend_ps(__mmask16(below_end & ~below_first), _mm512_set1_ps(other), a.v)};
}
IMP_INLINE Floats load_halves(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
IMP_INLINE Floats load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
IMP_INLINE Floats load_int8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
// Two vectors of bf16 stored as 16 pairs: the first and the second of each pair.
IMP_INLINE void load_pairs(const uint16_t* p, Floats& first, Floats& second) {
    const __m512i both = _mm512_loadu_si512(p);
    first.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    second.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000u))));
}
IMP_INLINE Floats times_two_to(Floats a, Floats whole) {  // a 2^whole for whole numbers in [-126, 127]
    return {_mm512_scalef_ps(a.v, whole.v)};
}
IMP_INLINE Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
IMP_INLINE Ints int_zeros() { return {_mm512_setzero_si512()}; }
IMP_INLINE Ints int_splat(int32_t a) { return {_mm512_set1_epi32(a)}; }
template <int N> IMP_INLINE Ints shift_left(Ints a) { return {_mm512_slli_epi32(a.v, N)}; }
IMP_INLINE void round_to_int8(Floats a, int8_t* p) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
IMP_INLINE Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
IMP_INLINE Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
IMP_INLINE Bytes high_nibbles(Bytes a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
// Bit 4 of each byte becomes bit Q of `bits`; `low` is below 16.
template <int Q> IMP_INLINE Bytes with_bit_4_from(Bytes low, Bytes bits) {
    const __m512i moved = Q < 4 ? _mm512_slli_epi16(bits.v, Q < 4 ? 4 - Q : 0) : Q > 4 ? _mm512_srli_epi16(bits.v, Q > 4 ? Q - 4 : 0) : bits.v;
    return {_mm512_or_si512(low.v, _mm512_and_si512(moved, _mm512_set1_epi8(16)))};
}
IMP_INLINE Bytes look_up(const uint8_t* table, Bytes index) {
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), index.v)};
}
// acc[lane] += sum of 4 unsigned weights times 4 signed activations; exact. `Wide`: weights may exceed 127 and their
// zero point is 128; where kWideIsSigned, the zero point is then already taken off.
constexpr bool kWideIsSigned = false;
template <bool Wide> IMP_INLINE Ints dot4(Ints acc, Bytes w, int32_t quad) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(quad))};
}
IMP_INLINE float sum_lanes(Floats a) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
IMP_INLINE float largest_lane(Floats a) { return _mm512_reduce_max_ps(a.v); }

#elif defined(__AVX2__)

struct Floats { __m256 lo, hi; };
struct Ints { __m256i lo, hi; };
struct Bytes { __m256i lo, hi; };

IMP_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
IMP_INLINE void store(float* p, Floats a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
IMP_INLINE Floats splat(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
IMP_INLINE Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
IMP_INLINE Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
IMP_INLINE Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
IMP_INLINE Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
IMP_INLINE Floats divide(Floats a, Floats b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
IMP_INLINE Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
IMP_INLINE Floats smaller(Floats a, Floats b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
IMP_INLINE Floats magnitude(Floats a) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
IMP_INLINE Floats fused(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
IMP_INLINE Floats negated_fused(Floats a, Floats b, Floats c) {
    return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
IMP_INLINE Floats replace_below(Floats a, float bound, Floats value, float other) {
    const __m256 b = _mm256_set1_ps(bound), o = _mm256_set1_ps(other);
    return {_mm256_blendv_ps(value.lo, o, _mm256_cmp_ps(a.lo, b, _CMP_LT_OQ)),
            _mm256_blendv_ps(value.hi, o, _mm256_cmp_ps(a.hi, b, _CMP_LT_OQ))};
}
IMP_INLINE __m256 keep_half(__m256 a, int first, int end, float other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i keep = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                                             _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
    return _mm256_blendv_ps(_mm256_set1_ps(other), a, _mm256_castsi256_ps(keep));
}
IMP_INLINE Floats keep_range(Floats a, int first, int end, float other) {
    return {keep_half(a.lo, first, end, other), keep_half(a.hi, first - 8, end - 8, other)};
}
IMP_INLINE Floats load_halves(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
IMP_INLINE __m256 bf16_half(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
IMP_INLINE Floats load_bf16(const uint16_t* p) { return {bf16_half(p), bf16_half(p + 8)}; }
IMP_INLINE Floats load_int8(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
}
IMP_INLINE void load_pairs(const uint16_t* p, Floats& first, Floats& second) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)(p + 16));
    const __m256i mask = _mm256_set1_epi32(int(0xffff0000u));
    first = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    second = {_mm256_castsi256_ps(_mm256_and_si256(a, mask)), _mm256_castsi256_ps(_mm256_and_si256(b, mask))};
}
IMP_INLINE __m256 two_to_half(__m256 whole) {
    const __m256i n = _mm256_cvtps_epi32(whole);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
IMP_INLINE Floats times_two_to(Floats a, Floats whole) {
    return {_mm256_mul_ps(a.lo, two_to_half(whole.lo)), _mm256_mul_ps(a.hi, two_to_half(whole.hi))};
}
IMP_INLINE Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
IMP_INLINE Ints int_zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
IMP_INLINE Ints int_splat(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
template <int N> IMP_INLINE Ints shift_left(Ints a) { return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)}; }
IMP_INLINE void round_to_int8(Floats a, int8_t* p) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)), 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
IMP_INLINE Bytes load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
IMP_INLINE Bytes low_nibbles(Bytes a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
IMP_INLINE Bytes high_nibbles(Bytes a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), mask)};
}
template <int Q> IMP_INLINE __m256i bit_4_from(__m256i bits) {
    const __m256i moved = Q < 4 ? _mm256_slli_epi16(bits, Q < 4 ? 4 - Q : 0) : Q > 4 ? _mm256_srli_epi16(bits, Q > 4 ? Q - 4 : 0) : bits;
    return _mm256_and_si256(moved, _mm256_set1_epi8(16));
}
template <int Q> IMP_INLINE Bytes with_bit_4_from(Bytes low, Bytes bits) {
    return {_mm256_or_si256(low.lo, bit_4_from<Q>(bits.lo)), _mm256_or_si256(low.hi, bit_4_from<Q>(bits.hi))};
}
IMP_INLINE Bytes look_up(const uint8_t* table, Bytes index) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return {_mm256_shuffle_epi8(t, index.lo), _mm256_shuffle_epi8(t, index.hi)};
}
// maddubs saturates at 2^15: weights up to 127 are safe as they are; wider ones go in by their signed value, whose
// magnitude is at most 128.
constexpr bool kWideIsSigned = true;
template <bool Wide> IMP_INLINE __m256i dot4_half(__m256i acc, __m256i w, __m256i a) {
    const __m256i ones = _mm256_set1_epi16(1);
    if (!Wide) return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), ones));
    const __m256i s = _mm256_xor_si256(w, _mm256_set1_epi8(int8_t(-128)));
    const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(a, s));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(products, ones));
}
template <bool Wide> IMP_INLINE Ints dot4(Ints acc, Bytes w, int32_t quad) {
    const __m256i a = _mm256_set1_epi32(quad);
    return {dot4_half<Wide>(acc.lo, w.lo, a), dot4_half<Wide>(acc.hi, w.hi, a)};
}
IMP_INLINE float sum_lanes(Floats a) {
    const __m256 h = _mm256_add_ps(a.lo, a.hi);
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
IMP_INLINE float largest_lane(Floats a) {
    const __m256 h = _mm256_max_ps(a.lo, a.hi);
    const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
}

#else

struct Floats { float v[16]; };
struct Ints { int32_t v[16]; };
struct Bytes { uint8_t v[64]; };

#define IMP_LANES for (int i = 0; i < 16; ++i)
IMP_INLINE Floats load(const float* p) { Floats r; std::memcpy(r.v, p, 64); return r; }
IMP_INLINE void store(float* p, Floats a) { std::memcpy(p, a.v, 64); }
IMP_INLINE Floats splat(float a) { Floats r; IMP_LANES r.v[i] = a; return r; }
IMP_INLINE Floats zeros() { return splat(0.0f); }
IMP_INLINE Floats add(Floats a, Floats b) { IMP_LANES a.v[i] += b.v[i]; return a; }
IMP_INLINE Floats sub(Floats a, Floats b) { IMP_LANES a.v[i] -= b.v[i]; return a; }
IMP_INLINE Floats mul(Floats a, Floats b) { IMP_LANES a.v[i] *= b.v[i]; return a; }
IMP_INLINE Floats divide(Floats a, Floats b) { IMP_LANES a.v[i] /= b.v[i]; return a; }
IMP_INLINE Floats larger(Floats a, Floats b) { IMP_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
IMP_INLINE Floats smaller(Floats a, Floats b) { IMP_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
IMP_INLINE Floats magnitude(Floats a) { IMP_LANES a.v[i] = std::fabs(a.v[i]); return a; }
IMP_INLINE Floats fused(Floats a, Floats b, Floats c) { IMP_LANES c.v[i] = fused_scalar(a.v[i], b.v[i], c.v[i]); return c; }
IMP_INLINE Floats negated_fused(Floats a, Floats b, Floats c) {
    IMP_LANES c.v[i] = fused_scalar(-a.v[i], b.v[i], c.v[i]);
    return c;
}
IMP_INLINE Floats replace_below(Floats a, float bound, Floats value, float other) {
    IMP_LANES value.v[i] = a.v[i] < bound ? other : value.v[i];
    return value;
}
IMP_INLINE Floats keep_range(Floats a, int first, int end, float other) {
    IMP_LANES a.v[i] = i >= first && i < end ? a.v[i] : other;
    return a;
}
IMP_INLINE Floats load_halves(const uint16_t* p) { Floats r; IMP_LANES r.v[i] = half_to_float(p[i]); return r; }
IMP_INLINE Floats load_bf16(const uint16_t* p) { Floats r; IMP_LANES r.v[i] = bf16_to_float(p[i]); return r; }
IMP_INLINE Floats load_int8(const int8_t* p) { Floats r; IMP_LANES r.v[i] = float(p[i]); return r; }
IMP_INLINE void load_pairs(const uint16_t* p, Floats& first, Floats& second) {
    IMP_LANES {
        first.v[i] = bf16_to_float(p[2 * i]);
        second.v[i] = bf16_to_float(p[2 * i + 1]);
    }
}
IMP_INLINE Floats times_two_to(Floats a, Floats whole) {
    IMP_LANES {
        const uint32_t bits = uint32_t(int32_t(whole.v[i]) + 127) << 23;
        float power;
        std::memcpy(&power, &bits, 4);
        a.v[i] *= power;
    }
    return a;
}
IMP_INLINE Floats to_floats(Ints a) { Floats r; IMP_LANES r.v[i] = float(a.v[i]); return r; }
IMP_INLINE Ints int_splat(int32_t a) { Ints r; IMP_LANES r.v[i] = a; return r; }
IMP_INLINE Ints int_zeros() { return int_splat(0); }
template <int N> IMP_INLINE Ints shift_left(Ints a) { IMP_LANES a.v[i] *= 1 << N; return a; }
IMP_INLINE void round_to_int8(Floats a, int8_t* p) { IMP_LANES p[i] = int8_t(std::nearbyintf(a.v[i])); }
IMP_INLINE Bytes load_bytes(const uint8_t* p) { Bytes r; std::memcpy(r.v, p, 64); return r; }
IMP_INLINE Bytes low_nibbles(Bytes a) { for (auto& b : a.v) b &= 15; return a; }
IMP_INLINE Bytes high_nibbles(Bytes a) { for (auto& b : a.v) b >>= 4; return a; }
template <int Q> IMP_INLINE Bytes with_bit_4_from(Bytes low, Bytes bits) {
    for (int i = 0; i < 64; ++i) low.v[i] = uint8_t(low.v[i] | (bits.v[i] >> Q & 1) << 4);
    return low;
}
IMP_INLINE Bytes look_up(const uint8_t* table, Bytes index) { for (auto& b : index.v) b = table[b]; return index; }
constexpr bool kWideIsSigned = false;
template <bool Wide> IMP_INLINE Ints dot4(Ints acc, Bytes w, int32_t quad) {
    int8_t a[4];
    std::memcpy(a, &quad, 4);
    IMP_LANES acc.v[i] += w.v[4 * i] * a[0] + w.v[4 * i + 1] * a[1] + w.v[4 * i + 2] * a[2] + w.v[4 * i + 3] * a[3];
    return acc;
}
IMP_INLINE float sum_lanes(Floats a) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    return a.v[0];
}
IMP_INLINE float largest_lane(Floats a) {
    float best = a.v[0];
    IMP_LANES best = a.v[i] > best ? a.v[i] : best;
    return best;
}
#undef IMP_LANES

#endif

IMP_INLINE Floats sub_from_zero(Floats a) { return sub(zeros(), a); }

// e^x for -88 <= clamped <= 88, and 0 where x < -87.
IMP_INLINE Floats exponential_of(Floats clamped, Floats x) {
    const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const Floats n = sub(fused(clamped, splat(1.44269504088896341f), magic), magic);
    Floats r = negated_fused(n, splat(0.693359375f), clamped);
    r = negated_fused(n, splat(-2.12194440e-4f), r);
    Floats p = splat(1.9875691500e-4f);
    p = fused(p, r, splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = add(fused(p, mul(r, r), r), splat(1.0f));
    return replace_below(x, -87.0f, times_two_to(p, n), 0.0f);
}

// e^x: 0 below -87, e^0 == 1 exactly, relative error below 2e-7. Above 88 it stays at e^88.
IMP_INLINE Floats exponential(Floats x) { return exponential_of(smaller(larger(x, splat(-88.0f)), splat(88.0f)), x); }

// The same bits for x <= 0.
IMP_INLINE Floats exponential_below_1(Floats x) { return exponential_of(larger(x, splat(-88.0f)), x); }

IMP_INLINE float exponential_scalar(float x) {
    float lanes[16];
    store(lanes, exponential(splat(x)));
    return lanes[0];
}

// tanh, by way of e^(-2|x|), so that it never overflows.
IMP_INLINE Floats hyperbolic_tangent(Floats x) {
    const Floats e = exponential(mul(magnitude(x), splat(-2.0f)));
    const Floats t = divide(sub(splat(1.0f), e), add(splat(1.0f), e));
    const Floats positive = replace_below(x, 0.0f, t, 0.0f);
    return sub(positive, sub(t, positive));
}

IMP_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace imp
