// The packed weight layouts: one table of parameters, one arithmetic.
//
// A matrix [n_out, n_in] is cut into panels of 16 outputs, a panel into blocks of 32 inputs, and blocks into spans of up to
// kSpan with one header, padded to whole cache lines, so that a panel is one sequential stream. It takes the bytes that the
// file has, since decoding is bound by them.
//   header   f16: per block [min] 16 x u16 scale, 16 x u16 minimum (span 2)
//            e8m0: per block 16 x u8 exponent e of the scale 2^(e - 128) (span 4)
//            two-level, per 8 blocks: 16 x f16 d, [min] 16 x f16 dmin, then the scales of their groups, 16 lanes each:
//              bytes    per group 16 x s8
//              nibbles  per group 16 x u8: scale (low), minimum (high)
//              sixes    of n groups first n / 2 x 16 bytes: bits 0-3 of group g (low) and n / 2 + g (high), then n / 4 x 16
//                       bytes: bits 4-5 of groups 4 j .. 4 j + 3; [min] the same of the minima
//   payload  per block planes of its values' bits. Quad i: inputs 4 i .. 4 i + 3; byte 4 r + b of a line is of output r and
//            input 4 i + b:
//              4 bits   4 lines: line i holds quad i (low) and quad 4 + i (high)
//              2 bits   2 lines: line j holds quads 4 j .. 4 j + 3
//              1 bit    1 line: bit i of quad i
//              8 bits   8 lines
//            5 bits: 4, then bit 4 as 1; 6 bits: 4, then bits 4-5 as 2; 3 bits: 2, then bit 2 as 1.
//            split (8-bit heads): a panel is first all headers and bits 3-7 as 5 bits, then bits 0-2 of all blocks as 3 bits,
//            so that a search can read the upper bits alone.
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
    q4_0, q4_1, q4_k, q2_k, q3_k, iq4_nl, iq4_xs, mxfp4, q8_0, q5_0, q5_1, q5_k, q6_k, q8_split, f16, bf16, f32, count
};

enum class Scales { f16, e8m0, bytes, nibbles, sixes };  // of two levels: those from `bytes` on

constexpr int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

template <int Bits, int Group, bool Minimum, int ZeroShift, bool Table, Scales ScaleKind, bool Full, bool Split = false>
struct Format {
    static constexpr int kBits = Bits;
    static constexpr int kGroups = kBlock / Group;       // groups in a block
    static constexpr bool kMinimum = Minimum;
    static constexpr int kZeroShift = ZeroShift;         // zero = 1 << kZeroShift; -1: zero = 0
    static constexpr bool kTable = Table;
    static constexpr Scales kScales = ScaleKind;
    static constexpr bool kTwoLevel = ScaleKind >= Scales::bytes;
    static constexpr bool kWide = Full;                  // values may exceed 127
    static constexpr bool kSplit = Split;
    static constexpr int kValueBits = Table || Full ? 8 : Bits;
    static constexpr int kInStream = Split ? 5 : Bits;   // bits of a value that lie behind the headers
    static constexpr int kPayload = kInStream * 64;      // bytes of a block there
    static constexpr int kRest = (Bits - kInStream) * 64;  // and behind all blocks
    // Groups of 8 blocks, and what their header takes; or of one block.
    static constexpr int kSubGroups = 8 * kGroups;
    static constexpr int kSubBytes = ScaleKind == Scales::sixes ? kSubGroups * 12 : kSubGroups * 16;
    static constexpr int kSuperBytes = Minimum ? 64 : 32;
    static constexpr int kUnitBlocks = kTwoLevel ? 8 : 1;
    static constexpr int kUnitHeader =
        kTwoLevel ? kSuperBytes + kSubBytes * (Minimum && ScaleKind != Scales::nibbles ? 2 : 1)
                  : ScaleKind == Scales::e8m0 ? 16 : Minimum ? 64 : 32;
    static constexpr int kSpan =  // blocks under one header: as many as make whole lines
        kUnitBlocks * (kUnitHeader % 64 == 0 ? kTwoLevel ? 1 : 2 : kUnitHeader % 32 == 0 ? 2 : 4);
    static_assert(kTwoLevel || kGroups == 1, "plain scales come with groups of 32");
    static_assert(!Full || ZeroShift == 7, "full-range values are stored with an offset of 128");

    static constexpr int64_t header_bytes(int n_blocks) {
        return whole_lines(int64_t((n_blocks + kUnitBlocks - 1) / kUnitBlocks) * kUnitHeader);
    }
    // Bytes of a panel up to the low bits of a split layout.
    static constexpr int64_t stream_bytes(int n_blocks) {
        return n_blocks / kSpan * header_bytes(kSpan) + header_bytes(n_blocks % kSpan) + int64_t(n_blocks) * kPayload;
    }
    static constexpr int64_t panel_bytes(int n_blocks) { return stream_bytes(n_blocks) + int64_t(n_blocks) * kRest; }
};

using Q4_0 = Format<4, 32, false, 3, false, Scales::f16, false>;
using Q4_1 = Format<4, 32, true, -1, false, Scales::f16, false>;
using Q4_K = Format<4, 32, true, -1, false, Scales::sixes, false>;
using Q2_K = Format<2, 16, true, -1, false, Scales::nibbles, false>;
using Q3_K = Format<3, 16, false, 2, false, Scales::sixes, false>;
using IQ4_NL = Format<4, 32, false, 7, true, Scales::f16, true>;
using IQ4_XS = Format<4, 32, false, 7, true, Scales::sixes, true>;
using MXFP4 = Format<4, 32, false, 7, true, Scales::e8m0, true>;
using Q8_0 = Format<8, 32, false, 7, false, Scales::f16, true>;
using Q5_0 = Format<5, 32, false, 4, false, Scales::f16, false>;
using Q5_1 = Format<5, 32, true, -1, false, Scales::f16, false>;
using Q5_K = Format<5, 32, true, -1, false, Scales::sixes, false>;
using Q6_K = Format<6, 16, false, 5, false, Scales::bytes, false>;
using Q8_Split = Format<8, 32, false, 7, false, Scales::f16, true, true>;

constexpr bool is_float(FormatId id) { return id >= FormatId::f16; }

// The value tables with 128 added: IQ4_NL's own, and E2M1 doubled (the block scale is halved to match).
alignas(16) constexpr uint8_t kIq4Table[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t kMxfp4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

template <class F> IMP_INLINE const uint8_t* value_table() { return F::kScales == Scales::e8m0 ? kMxfp4Table : kIq4Table; }

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
        case FormatId::q8_split: f(Q8_Split{}); return true;
        default: return false;
    }
}

// The scales of one block: [group] 16 lanes each.
template <class F> struct BlockScales { Floats scale[F::kGroups], minimum[F::kMinimum ? F::kGroups : 1]; };

// Scale g of the 8 blocks' groups; signed sixes are stored with an offset of 32.
template <class F> IMP_INLINE Floats sub_scale(const uint8_t* at, int g) {
    if constexpr (F::kScales == Scales::bytes) return load_int8((const int8_t*)at + 16 * g);
    if constexpr (F::kScales == Scales::nibbles) return load_nibbles(at + 16 * g, 0);
    constexpr int kHalf = F::kSubGroups / 2;
    const Floats six = load_sixes(at + 16 * (g % kHalf), g / kHalf * 4, at + 16 * (kHalf + g / 4), g % 4 * 2);
    return F::kMinimum ? six : sub(six, splat(32.0f));
}

template <class F> IMP_INLINE Floats sub_minimum(const uint8_t* at, int g) {
    if constexpr (F::kScales == Scales::nibbles) return load_nibbles(at + 16 * g, 4);
    return sub_scale<F>(at + F::kSubBytes, g);
}

// Of block i under the header.
template <class F> IMP_INLINE BlockScales<F> block_scales(const uint8_t* header, int i) {
    BlockScales<F> s;
    if constexpr (F::kTwoLevel) {
        const uint8_t* super = header + i / 8 * F::kUnitHeader;
        const uint8_t* subs = super + F::kSuperBytes;
        const Floats d = load_halves((const uint16_t*)super);
        for (int g = 0; g < F::kGroups; ++g) s.scale[g] = mul(d, sub_scale<F>(subs, i % 8 * F::kGroups + g));
        if constexpr (F::kMinimum) {
            const Floats dmin = load_halves((const uint16_t*)super + 16);
            for (int g = 0; g < F::kGroups; ++g)
                s.minimum[g] = sub_from_zero(mul(dmin, sub_minimum<F>(subs, i % 8 * F::kGroups + g)));
        }
    } else if constexpr (F::kScales == Scales::e8m0) {
        s.scale[0] = load_e8m0(header + i * F::kUnitHeader);
    } else {
        const uint16_t* plain = (const uint16_t*)(header + i * F::kUnitHeader);
        s.scale[0] = load_halves(plain);
        if constexpr (F::kMinimum) s.minimum[0] = load_halves(plain + 16);
    }
    return s;
}

// Quad Q of the planes of a payload of Bits, moved up by Shift.
template <int Bits, int Q, int Shift = 0> IMP_INLINE Bytes quad_of_planes(const uint8_t* payload) {
    constexpr int kTwoFrom = Q % 4 * 2;
    if constexpr (Bits <= 3) {
        const Bytes low = bits<kTwoFrom, Shift, 2>(load_bytes(payload + 64 * (Q / 4)));
        return Bits == 2 ? low : either(low, bits<Q, Shift + 2, 1>(load_bytes(payload + 128)));
    } else {
        const Bytes low = bits<Q / 4 * 4, Shift, 4>(load_bytes(payload + 64 * (Q % 4)));
        if constexpr (Bits == 4) return low;
        if constexpr (Bits == 5) return either(low, bits<Q, Shift + 4, 1>(load_bytes(payload + 256)));
        return either(low, bits<kTwoFrom, Shift + 4, 2>(load_bytes(payload + 256 + 64 * (Q / 4))));
    }
}

// 64 bytes: inputs 4 Q .. 4 Q + 3 of the 16 outputs. `rest`: the low bits of a split layout.
template <class F, int Q> IMP_INLINE Bytes quad_values(const uint8_t* payload, const uint8_t* rest) {
    if constexpr (F::kSplit) {
        return either(quad_of_planes<5, Q, 3>(payload), quad_of_planes<3, Q>(rest));
    } else if constexpr (F::kBits == 8) {
        return load_bytes(payload + 64 * Q);
    } else {
        const Bytes values = quad_of_planes<F::kBits, Q>(payload);
        return F::kTable ? look_up(value_table<F>(), values) : values;
    }
}

// Value k of a block's output `lane`, as quad_values has it.
inline int value_of_planes(int bits_of, const uint8_t* payload, int lane, int k) {
    const int q = k / 4, at = 4 * lane + k % 4;
    const auto line = [&](int i) { return int(payload[64 * i + at]); };
    if (bits_of == 8) return line(q);
    int value = bits_of <= 3 ? line(q / 4) >> q % 4 * 2 & 3 : line(q % 4) >> q / 4 * 4 & 15;
    if (bits_of == 3) value |= (line(2) >> q & 1) << 2;
    if (bits_of == 5) value |= (line(4) >> q & 1) << 4;
    if (bits_of == 6) value |= (line(4 + q / 4) >> q % 4 * 2 & 3) << 4;
    return value;
}

template <class F> int value_at(const uint8_t* payload, const uint8_t* rest, int lane, int k) {
    const int value = value_of_planes(F::kInStream, payload, lane, k);
    if (F::kSplit) return value << 3 | value_of_planes(3, rest, lane, k);
    return F::kTable ? value_table<F>()[value] : value;
}

}  // namespace imp
