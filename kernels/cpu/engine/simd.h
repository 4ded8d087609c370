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
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

// IMP_VECTOR_256: 256-bit vectors on a machine with wider ones, to prove the AVX-VNNI build on it.
#if defined(__AVX512F__) && !defined(IMP_VECTOR_256)
#define IMP_LANES_512 1
#else
#define IMP_LANES_512 0
#endif

#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
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
#if defined(__FMA__) || defined(__ARM_FEATURE_DOTPROD)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

#if IMP_LANES_512

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
// Bits [From, From + Count) of each byte as bits [To, To + Count), all others zero.
template <int From, int To, int Count> IMP_INLINE Bytes bits(Bytes a) {
    constexpr int kUp = To > From ? To - From : 0, kDown = From > To ? From - To : 0;
    const __m512i moved = kUp ? _mm512_slli_epi16(a.v, kUp) : kDown ? _mm512_srli_epi16(a.v, kDown) : a.v;
    return {_mm512_and_si512(moved, _mm512_set1_epi8(int8_t(((1 << Count) - 1) << To)))};
}
IMP_INLINE Bytes either(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
IMP_INLINE Bytes look_up(const uint8_t* table, Bytes index) {
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), index.v)};
}
// acc[lane] += sum of 4 unsigned weights times 4 signed activations; exact. `Wide`: weights may exceed 127 and their
// zero point is 128; where kWideIsSigned, the zero point is then already taken off.
constexpr bool kWideIsSigned = false;
template <bool Wide> IMP_INLINE Ints dot4(Ints acc, Bytes w, int32_t quad) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(quad))};
}
// The same of four quads; the values of weights have `ValueBits`, and quad i of the activations is a[i * stride].
template <bool Wide, int ValueBits> IMP_INLINE Ints dot16(Ints acc, const Bytes* w, const int32_t* a, int stride) {
    for (int i = 0; i < 4; ++i) acc = dot4<Wide>(acc, w[i], a[i * stride]);
    return acc;
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
template <int From, int To, int Count> IMP_INLINE __m256i bits_of_half(__m256i a) {
    constexpr int kUp = To > From ? To - From : 0, kDown = From > To ? From - To : 0;
    const __m256i moved = kUp ? _mm256_slli_epi16(a, kUp) : kDown ? _mm256_srli_epi16(a, kDown) : a;
    return _mm256_and_si256(moved, _mm256_set1_epi8(int8_t(((1 << Count) - 1) << To)));
}
template <int From, int To, int Count> IMP_INLINE Bytes bits(Bytes a) {
    return {bits_of_half<From, To, Count>(a.lo), bits_of_half<From, To, Count>(a.hi)};
}
IMP_INLINE Bytes either(Bytes a, Bytes b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
IMP_INLINE Bytes look_up(const uint8_t* table, Bytes index) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return {_mm256_shuffle_epi8(t, index.lo), _mm256_shuffle_epi8(t, index.hi)};
}
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
// AVX-VNNI, or the same instruction as AVX-512 has it for 256 bits (IMP_VECTOR_256): equal in every bit.
#if defined(__AVXVNNI__)
#define IMP_DPBUSD _mm256_dpbusd_avx_epi32
#else
#define IMP_DPBUSD _mm256_dpbusd_epi32
#endif
constexpr bool kWideIsSigned = false;
template <bool Wide> IMP_INLINE Ints dot4(Ints acc, Bytes w, int32_t quad) {
    const __m256i a = _mm256_set1_epi32(quad);
    return {IMP_DPBUSD(acc.lo, w.lo, a), IMP_DPBUSD(acc.hi, w.hi, a)};
}
template <bool Wide, int ValueBits> IMP_INLINE Ints dot16(Ints acc, const Bytes* w, const int32_t* a, int stride) {
    for (int i = 0; i < 4; ++i) acc = dot4<Wide>(acc, w[i], a[i * stride]);
    return acc;
}
#undef IMP_DPBUSD
#else
// maddubs saturates at 2^15: weights up to 127 are safe as they are; wider ones go in by their signed value, whose
// magnitude is at most 128.
constexpr bool kWideIsSigned = true;
template <bool Wide> IMP_INLINE __m256i products_of_half(__m256i w, __m256i a) {
    if (!Wide) return _mm256_maddubs_epi16(w, a);
    const __m256i s = _mm256_xor_si256(w, _mm256_set1_epi8(int8_t(-128)));
    return _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(a, s));
}
IMP_INLINE __m256i plus_pairs(__m256i acc, __m256i words) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
}
template <bool Wide> IMP_INLINE Ints dot4(Ints acc, Bytes w, int32_t quad) {
    const __m256i a = _mm256_set1_epi32(quad);
    return {plus_pairs(acc.lo, products_of_half<Wide>(w.lo, a)), plus_pairs(acc.hi, products_of_half<Wide>(w.hi, a))};
}
// Narrow values leave room in 16 bits: 2 * 4 * 31 * 128 and 2 * 2 * 63 * 128 stay below 2^15.
template <bool Wide, int ValueBits> IMP_INLINE Ints dot16(Ints acc, const Bytes* w, const int32_t* a, int stride) {
    if constexpr (ValueBits > 6) {
        for (int i = 0; i < 4; ++i) acc = dot4<Wide>(acc, w[i], a[i * stride]);
        return acc;
    }
    __m256i lo[4], hi[4];
    for (int i = 0; i < 4; ++i) {
        const __m256i quad = _mm256_set1_epi32(a[i * stride]);
        lo[i] = _mm256_maddubs_epi16(w[i].lo, quad);
        hi[i] = _mm256_maddubs_epi16(w[i].hi, quad);
    }
    const __m256i lo_a = _mm256_add_epi16(lo[0], lo[1]), lo_b = _mm256_add_epi16(lo[2], lo[3]);
    const __m256i hi_a = _mm256_add_epi16(hi[0], hi[1]), hi_b = _mm256_add_epi16(hi[2], hi[3]);
    if constexpr (ValueBits == 6)
        return {plus_pairs(plus_pairs(acc.lo, lo_a), lo_b), plus_pairs(plus_pairs(acc.hi, hi_a), hi_b)};
    return {plus_pairs(acc.lo, _mm256_add_epi16(lo_a, lo_b)), plus_pairs(acc.hi, _mm256_add_epi16(hi_a, hi_b))};
}
#endif
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

#elif defined(__ARM_FEATURE_DOTPROD)

struct Floats { float32x4_t v[4]; };
struct Ints { int32x4_t v[4]; };
struct Bytes { uint8x16_t v[4]; };

#define IMP_QUARTERS for (int i = 0; i < 4; ++i)
IMP_INLINE Floats load(const float* p) { Floats r; IMP_QUARTERS r.v[i] = vld1q_f32(p + 4 * i); return r; }
IMP_INLINE void store(float* p, Floats a) { IMP_QUARTERS vst1q_f32(p + 4 * i, a.v[i]); }
IMP_INLINE Floats splat(float a) { Floats r; IMP_QUARTERS r.v[i] = vdupq_n_f32(a); return r; }
IMP_INLINE Floats zeros() { return splat(0.0f); }
IMP_INLINE Floats add(Floats a, Floats b) { IMP_QUARTERS a.v[i] = vaddq_f32(a.v[i], b.v[i]); return a; }
IMP_INLINE Floats sub(Floats a, Floats b) { IMP_QUARTERS a.v[i] = vsubq_f32(a.v[i], b.v[i]); return a; }
IMP_INLINE Floats mul(Floats a, Floats b) { IMP_QUARTERS a.v[i] = vmulq_f32(a.v[i], b.v[i]); return a; }
IMP_INLINE Floats divide(Floats a, Floats b) { IMP_QUARTERS a.v[i] = vdivq_f32(a.v[i], b.v[i]); return a; }
// The second operand where one isn't a number, as everywhere.
IMP_INLINE Floats larger(Floats a, Floats b) { IMP_QUARTERS a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); return a; }
IMP_INLINE Floats smaller(Floats a, Floats b) { IMP_QUARTERS a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); return a; }
IMP_INLINE Floats magnitude(Floats a) { IMP_QUARTERS a.v[i] = vabsq_f32(a.v[i]); return a; }
IMP_INLINE Floats fused(Floats a, Floats b, Floats c) { IMP_QUARTERS c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]); return c; }
IMP_INLINE Floats negated_fused(Floats a, Floats b, Floats c) { IMP_QUARTERS c.v[i] = vfmsq_f32(c.v[i], a.v[i], b.v[i]); return c; }
IMP_INLINE Floats replace_below(Floats a, float bound, Floats value, float other) {
    IMP_QUARTERS value.v[i] = vbslq_f32(vcltq_f32(a.v[i], vdupq_n_f32(bound)), vdupq_n_f32(other), value.v[i]);
    return value;
}
IMP_INLINE Floats keep_range(Floats a, int first, int end, float other) {
    const int32_t lanes[4] = {0, 1, 2, 3};
    IMP_QUARTERS {
        const int32x4_t lane = vaddq_s32(vld1q_s32(lanes), vdupq_n_s32(4 * i));
        const uint32x4_t keep = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(end)));
        a.v[i] = vbslq_f32(keep, a.v[i], vdupq_n_f32(other));
    }
    return a;
}
IMP_INLINE Floats load_halves(const uint16_t* p) {
    Floats r;
    IMP_QUARTERS r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return r;
}
IMP_INLINE Floats load_bf16(const uint16_t* p) {
    Floats r;
    IMP_QUARTERS r.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p + 4 * i)), 16));
    return r;
}
IMP_INLINE Floats load_int8(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
IMP_INLINE void load_pairs(const uint16_t* p, Floats& first, Floats& second) {
    IMP_QUARTERS {
        const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(p + 8 * i));
        first.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
        second.v[i] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
    }
}
IMP_INLINE Floats times_two_to(Floats a, Floats whole) {
    IMP_QUARTERS {
        const int32x4_t n = vaddq_s32(vcvtnq_s32_f32(whole.v[i]), vdupq_n_s32(127));
        a.v[i] = vmulq_f32(a.v[i], vreinterpretq_f32_s32(vshlq_n_s32(n, 23)));
    }
    return a;
}
IMP_INLINE Floats to_floats(Ints a) { Floats r; IMP_QUARTERS r.v[i] = vcvtq_f32_s32(a.v[i]); return r; }
IMP_INLINE Ints int_splat(int32_t a) { Ints r; IMP_QUARTERS r.v[i] = vdupq_n_s32(a); return r; }
IMP_INLINE Ints int_zeros() { return int_splat(0); }
template <int N> IMP_INLINE Ints shift_left(Ints a) { IMP_QUARTERS a.v[i] = vshlq_n_s32(a.v[i], N); return a; }
IMP_INLINE int8x16_t rounded(Floats a) {
    int16x4_t words[4];
    IMP_QUARTERS words[i] = vqmovn_s32(vcvtnq_s32_f32(a.v[i]));
    return vcombine_s8(vqmovn_s16(vcombine_s16(words[0], words[1])), vqmovn_s16(vcombine_s16(words[2], words[3])));
}
IMP_INLINE void round_to_int8(Floats a, int8_t* p) { vst1q_s8(p, rounded(a)); }
IMP_INLINE Bytes load_bytes(const uint8_t* p) { Bytes r; IMP_QUARTERS r.v[i] = vld1q_u8(p + 16 * i); return r; }
template <int From, int To, int Count> IMP_INLINE Bytes bits(Bytes a) {
    IMP_QUARTERS {
        if constexpr (To > From) a.v[i] = vshlq_n_u8(a.v[i], To - From);
        if constexpr (From > To) a.v[i] = vshrq_n_u8(a.v[i], From - To);
        a.v[i] = vandq_u8(a.v[i], vdupq_n_u8(uint8_t(((1 << Count) - 1) << To)));
    }
    return a;
}
IMP_INLINE Bytes either(Bytes a, Bytes b) { IMP_QUARTERS a.v[i] = vorrq_u8(a.v[i], b.v[i]); return a; }
IMP_INLINE Bytes look_up(const uint8_t* table, Bytes index) {
    const uint8x16_t values = vld1q_u8(table);
    IMP_QUARTERS index.v[i] = vqtbl1q_u8(values, index.v[i]);
    return index;
}
IMP_INLINE uint8x16_t shifted_down(const uint8_t* p, int shift, int mask) {
    return vandq_u8(vshlq_u8(vld1q_u8(p), vdupq_n_s8(int8_t(-shift))), vdupq_n_u8(uint8_t(mask)));
}
IMP_INLINE Ints widened(uint8x16_t bytes) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
             vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
IMP_INLINE Floats load_nibbles(const uint8_t* p, int shift) { return to_floats(widened(shifted_down(p, shift, 15))); }
IMP_INLINE Floats load_sixes(const uint8_t* low, int low_shift, const uint8_t* top, int top_shift) {
    return to_floats(widened(vorrq_u8(shifted_down(low, low_shift, 15), vshlq_n_u8(shifted_down(top, top_shift, 3), 4))));
}
IMP_INLINE Floats load_e8m0(const uint8_t* p) {
    const Ints e = widened(vld1q_u8(p));
    const int32x4_t one = vdupq_n_s32(1);
    Floats r;
    IMP_QUARTERS {
        const int32x4_t tiny = vshlq_n_s32(vaddq_s32(vminq_s32(e.v[i], one), one), 21);
        r.v[i] = vreinterpretq_f32_s32(vmaxq_s32(vshlq_n_s32(vsubq_s32(e.v[i], one), 23), tiny));
    }
    return r;
}
// Signed by signed; or, with the matrix extension, unsigned by signed.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kWideIsSigned = false;
template <bool Wide> IMP_INLINE int32x4_t dot4_quarter(int32x4_t acc, uint8x16_t w, int8x16_t a) { return vusdotq_s32(acc, w, a); }
#else
constexpr bool kWideIsSigned = true;
template <bool Wide> IMP_INLINE int32x4_t dot4_quarter(int32x4_t acc, uint8x16_t w, int8x16_t a) {
    return vdotq_s32(acc, vreinterpretq_s8_u8(Wide ? veorq_u8(w, vdupq_n_u8(0x80)) : w), a);
}
#endif
template <bool Wide> IMP_INLINE Ints dot4(Ints acc, Bytes w, int32_t quad) {
    const int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(quad));
    IMP_QUARTERS acc.v[i] = dot4_quarter<Wide>(acc.v[i], w.v[i], a);
    return acc;
}
template <bool Wide, int ValueBits> IMP_INLINE Ints dot16(Ints acc, const Bytes* w, const int32_t* a, int stride) {
    for (int i = 0; i < 4; ++i) acc = dot4<Wide>(acc, w[i], a[i * stride]);
    return acc;
}
IMP_INLINE float sum_lanes(Floats a) {
    const float32x4_t q = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t d = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
IMP_INLINE float largest_lane(Floats a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
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
template <int From, int To, int Count> IMP_INLINE Bytes bits(Bytes a) {
    for (auto& b : a.v) b = uint8_t((b >> From & ((1 << Count) - 1)) << To);
    return a;
}
IMP_INLINE Bytes either(Bytes a, Bytes b) { for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i]; return a; }
IMP_INLINE Floats load_nibbles(const uint8_t* p, int shift) { Floats r; IMP_LANES r.v[i] = float(p[i] >> shift & 15); return r; }
IMP_INLINE float power_of(int e) {
    const uint32_t bits = e < 2 ? 0x200000u << e : uint32_t(e - 1) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return power;
}
IMP_INLINE Floats load_e8m0(const uint8_t* p) { Floats r; IMP_LANES r.v[i] = power_of(p[i]); return r; }
IMP_INLINE Floats load_sixes(const uint8_t* low, int low_shift, const uint8_t* top, int top_shift) {
    Floats r;
    IMP_LANES r.v[i] = float((low[i] >> low_shift & 15) | (top[i] >> top_shift & 3) << 4);
    return r;
}
IMP_INLINE Bytes look_up(const uint8_t* table, Bytes index) { for (auto& b : index.v) b = table[b]; return index; }
constexpr bool kWideIsSigned = false;
template <bool Wide> IMP_INLINE Ints dot4(Ints acc, Bytes w, int32_t quad) {
    int8_t a[4];
    std::memcpy(a, &quad, 4);
    IMP_LANES acc.v[i] += w.v[4 * i] * a[0] + w.v[4 * i + 1] * a[1] + w.v[4 * i + 2] * a[2] + w.v[4 * i + 3] * a[3];
    return acc;
}
template <bool Wide, int ValueBits> IMP_INLINE Ints dot16(Ints acc, const Bytes* w, const int32_t* a, int stride) {
    for (int i = 0; i < 4; ++i) acc = dot4<Wide>(acc, w[i], a[i * stride]);
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

#if defined(__AVX2__)
// 16 bytes widened to lanes; 16 powers 2^(e - 128) of unsigned bytes e, subnormal for e < 2.
#if IMP_LANES_512
IMP_INLINE Floats lanes_of(__m128i bytes) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))}; }
IMP_INLINE Floats load_e8m0(const uint8_t* p) {
    const __m512i one = _mm512_set1_epi32(1), e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
    const __m512i tiny = _mm512_slli_epi32(_mm512_add_epi32(_mm512_min_epi32(e, one), one), 21);
    return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(_mm512_sub_epi32(e, one), 23), tiny))};
}
#else
IMP_INLINE Floats lanes_of(__m128i bytes) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)))};
}
IMP_INLINE __m256 powers_of_half(const uint8_t* p) {
    const __m256i one = _mm256_set1_epi32(1), e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
    const __m256i tiny = _mm256_slli_epi32(_mm256_add_epi32(_mm256_min_epi32(e, one), one), 21);
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(_mm256_sub_epi32(e, one), 23), tiny));
}
IMP_INLINE Floats load_e8m0(const uint8_t* p) { return {powers_of_half(p), powers_of_half(p + 8)}; }
#endif
IMP_INLINE __m128i shifted_down(const uint8_t* p, int shift, int mask) {
    const __m128i words = _mm_srl_epi16(_mm_loadu_si128((const __m128i*)p), _mm_cvtsi32_si128(shift));
    return _mm_and_si128(words, _mm_set1_epi8(int8_t(mask)));
}
// 16 unsigned numbers of 4 bits, from bit `shift` of each byte on.
IMP_INLINE Floats load_nibbles(const uint8_t* p, int shift) { return lanes_of(shifted_down(p, shift, 15)); }
// 16 unsigned numbers of 6 bits: 4 from bit `low_shift` of `low`, the upper 2 from bit `top_shift` of `top`.
IMP_INLINE Floats load_sixes(const uint8_t* low, int low_shift, const uint8_t* top, int top_shift) {
    const __m128i upper = _mm_slli_epi16(shifted_down(top, top_shift, 3), 4);
    return lanes_of(_mm_or_si128(shifted_down(low, low_shift, 15), upper));
}
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
