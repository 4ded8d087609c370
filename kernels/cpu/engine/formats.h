// The packed weight layouts: one table of parameters, one arithmetic.
//
// A matrix [n_out, n_in] is cut into panels of 16 outputs, a panel into blocks of 32 inputs, and blocks into groups of
// kSpan with one header, so that a panel is one sequential stream of whole cache lines:
//   header   plain scales: per block [min] 16 x u16 scale, 16 x u16 minimum (span 2)
//            two-level:    16 x f16 d, [min] 16 x f16 dmin, then per block and group 16 x s8 scale, [min] 16 x s8 minimum
//                          (span 8), padded to 64 bytes
//   payload  per block: 4-bit: 256 bytes, byte 64 i + 4 r + b holds inputs 4 i + b (low) and 16 + 4 i + b (high) of output r
//                       8-bit: 512 bytes, byte 64 i + 4 r + b holds input 4 i + b of output r
// A weight is scale * (value - zero) + minimum with scale = d or float(d) * float(s), minimum = m or -(float(dmin) * float(m)).
// backends/cpu/layouts.py states the same in Python; twin.py is the arithmetic's twin.
#pragma once

#include <cstdint>

#include "simd.h"

namespace imp {

constexpr int kPanelRows = 16;
constexpr int kBlock = 32;

// Order is the ABI of layouts.py.
enum class FormatId : int32_t {
    q4_0, q4_1, q4_k, q2_k, q3_k, iq4_nl, iq4_xs, mxfp4, q8_0, q5_0, q5_1, q5_k, q6_k, f16, bf16, f32, count
};

enum class Scales { f16, bf16, two_level };

template <int Bits, int Group, bool Minimum, int ZeroShift, bool Table, Scales ScaleKind, bool Full>
struct Format {
    static constexpr int kBits = Bits;
    static constexpr int kGroups = kBlock / Group;       // groups in a block
    static constexpr bool kMinimum = Minimum;
    static constexpr int kZeroShift = ZeroShift;         // zero = 1 << kZeroShift; -1: zero = 0
    static constexpr bool kTable = Table;
    static constexpr bool kTwoLevel = ScaleKind == Scales::two_level;
    static constexpr bool kBf16Scales = ScaleKind == Scales::bf16;
    static constexpr bool kWide = Full;                  // values may exceed 127
    static constexpr int kSpan = kTwoLevel ? 8 : 2;      // blocks under one header
    static constexpr int kPayload = Bits * 64;           // bytes of a block
    static constexpr int kPlainBytes = Minimum ? 64 : 32;
    static constexpr int kSuperBytes = Minimum ? 64 : 32;
    static constexpr int kSubBytes = kGroups * (Minimum ? 32 : 16);
    static constexpr int kHeader =
        kTwoLevel ? (kSuperBytes + kSpan * kSubBytes + 63) / 64 * 64 : kSpan * kPlainBytes;
    static_assert(kTwoLevel || kGroups == 1, "plain scales come with groups of 32");
    static_assert(!Full || ZeroShift == 7, "full-range values are stored with an offset of 128");

    static int64_t panel_bytes(int n_blocks) {
        return int64_t((n_blocks + kSpan - 1) / kSpan) * kHeader + int64_t(n_blocks) * kPayload;
    }
};

using Q4_0 = Format<4, 32, false, 3, false, Scales::f16, false>;
using Q4_1 = Format<4, 32, true, -1, false, Scales::f16, false>;
using Q4_K = Format<4, 32, true, -1, false, Scales::two_level, false>;
using Q2_K = Format<4, 16, true, -1, false, Scales::two_level, false>;
using Q3_K = Format<4, 16, false, 2, false, Scales::two_level, false>;
using IQ4_NL = Format<4, 32, false, 7, true, Scales::f16, true>;
using IQ4_XS = Format<4, 32, false, 7, true, Scales::two_level, true>;
using MXFP4 = Format<4, 32, false, 7, true, Scales::bf16, true>;
using Q8_0 = Format<8, 32, false, 7, false, Scales::f16, true>;
using Q5_0 = Format<8, 32, false, 4, false, Scales::f16, false>;
using Q5_1 = Format<8, 32, true, -1, false, Scales::f16, false>;
using Q5_K = Format<8, 32, true, -1, false, Scales::two_level, false>;
using Q6_K = Format<8, 16, false, 5, false, Scales::two_level, false>;

constexpr bool is_float(FormatId id) { return id >= FormatId::f16; }

// The value tables with 128 added: IQ4_NL's own, and E2M1 doubled (the block scale is halved in packing).
alignas(16) constexpr uint8_t kIq4Table[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t kMxfp4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

template <class F> IMP_INLINE const uint8_t* value_table() { return F::kBf16Scales ? kMxfp4Table : kIq4Table; }

// Calls f with a value of the format's type; false for the float formats.
template <class Fn> bool with_format(FormatId id, Fn&& f) {
    switch (id) {
        case FormatId::q4_0: f(Q4_0{}); return true;
        case FormatId::q4_1: f(Q4_1{}); return true;
        case FormatId::q4_k: f(Q4_K{}); return true;
        case FormatId::q2_k: f(Q2_K{}); return true;
        case FormatId::q3_k: f(Q3_K{}); return true;
        case FormatId::iq4_nl: f(IQ4_NL{}); return true;
        case FormatId::iq4_xs: f(IQ4_XS{}); return true;
        case FormatId::mxfp4: f(MXFP4{}); return true;
        case FormatId::q8_0: f(Q8_0{}); return true;
        case FormatId::q5_0: f(Q5_0{}); return true;
        case FormatId::q5_1: f(Q5_1{}); return true;
        case FormatId::q5_k: f(Q5_K{}); return true;
        case FormatId::q6_k: f(Q6_K{}); return true;
        default: return false;
    }
}

// The scales of one block: [group] 16 lanes each.
template <class F> struct BlockScales { Floats scale[F::kGroups], minimum[F::kMinimum ? F::kGroups : 1]; };

template <class F> IMP_INLINE BlockScales<F> block_scales(const uint8_t* header, int i) {
    BlockScales<F> s;
    if constexpr (F::kTwoLevel) {
        const Floats d = load_halves((const uint16_t*)header);
        const int8_t* sub = (const int8_t*)header + F::kSuperBytes + i * F::kSubBytes;
        for (int g = 0; g < F::kGroups; ++g) s.scale[g] = mul(d, load_int8(sub + 16 * g));
        if constexpr (F::kMinimum) {
            const Floats dmin = load_halves((const uint16_t*)header + 16);
            for (int g = 0; g < F::kGroups; ++g)
                s.minimum[g] = sub_from_zero(mul(dmin, load_int8(sub + 16 * (F::kGroups + g))));
        }
    } else {
        const uint16_t* plain = (const uint16_t*)(header + i * F::kPlainBytes);
        s.scale[0] = F::kBf16Scales ? load_bf16(plain) : load_halves(plain);
        if constexpr (F::kMinimum) s.minimum[0] = load_halves(plain + 16);
    }
    return s;
}

// 64 bytes: inputs 4 quad .. 4 quad + 3 of the 16 outputs.
template <class F> IMP_INLINE Bytes quad_values(const uint8_t* payload, int quad) {
    if constexpr (F::kBits == 8) return load_bytes(payload + 64 * quad);
    const Bytes packed = load_bytes(payload + 64 * (quad & 3));
    const Bytes nibbles = quad < 4 ? low_nibbles(packed) : high_nibbles(packed);
    if constexpr (F::kTable) return look_up(value_table<F>(), nibbles);
    return nibbles;
}

}  // namespace imp
