#include "packing.h"

#include <algorithm>
#include <cstring>

namespace imp {
namespace {

constexpr uint32_t kOnes = 0x01010101u, kThrees = 0x03030303u, kNibbles = 0x0f0f0f0fu;

uint32_t word(const uint8_t* p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}

uint16_t half(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
}

// Of one row: codes[block][quad], four inputs a word, and the scales of a unit of the layout's header.
struct Unit {
    uint32_t codes[8][8];
    uint16_t scale, minimum;
    uint8_t subs[16], sub_minima[16];
};

void take_nibbles(const uint8_t* at, uint32_t* quads) {
    for (int i = 0; i < 4; ++i) {
        quads[i] = word(at + 4 * i) & kNibbles;
        quads[4 + i] = word(at + 4 * i) >> 4 & kNibbles;
    }
}

void take_fifth_bits(uint32_t bits, uint32_t* quads) {
    for (int q = 0; q < 8; ++q) quads[q] |= ((bits >> 4 * q & 15) * 0x00204081u & kOnes) << 4;
}

// The 6-bit scales and minima of the 8 groups of Q4_K and Q5_K.
void take_k_scales(const uint8_t* at, Unit& to) {
    for (int i = 0; i < 4; ++i) {
        to.subs[i] = at[i] & 63;
        to.sub_minima[i] = at[4 + i] & 63;
        to.subs[4 + i] = uint8_t((at[8 + i] & 15) | at[i] >> 6 << 4);
        to.sub_minima[4 + i] = uint8_t(at[8 + i] >> 4 | at[4 + i] >> 6 << 4);
    }
}

// K-quants keep 64 values in 32 bytes, first the low halves.
void take_k_nibbles(const uint8_t* at, Unit& to) {
    for (int b = 0; b < 8; ++b)
        for (int q = 0; q < 8; ++q) to.codes[b][q] = word(at + b / 2 * 32 + 4 * q) >> b % 2 * 4 & kNibbles;
}

void take_two_bits(const uint8_t* at, Unit& to) {
    for (int b = 0; b < 8; ++b)
        for (int q = 0; q < 8; ++q) to.codes[b][q] = word(at + b / 4 * 32 + 4 * q) >> b % 4 * 2 & kThrees;
}

template <FormatId Id> void take(const uint8_t* b, Unit& to);

template <> void take<FormatId::q4_0>(const uint8_t* b, Unit& to) {
    to.scale = half(b);
    take_nibbles(b + 2, to.codes[0]);
}
template <> void take<FormatId::iq4_nl>(const uint8_t* b, Unit& to) { take<FormatId::q4_0>(b, to); }
template <> void take<FormatId::q4_1>(const uint8_t* b, Unit& to) {
    to.scale = half(b);
    to.minimum = half(b + 2);
    take_nibbles(b + 4, to.codes[0]);
}
template <> void take<FormatId::mxfp4>(const uint8_t* b, Unit& to) {
    to.scale = b[0];
    take_nibbles(b + 1, to.codes[0]);
}
template <> void take<FormatId::q8_0>(const uint8_t* b, Unit& to) {
    to.scale = half(b);
    for (int q = 0; q < 8; ++q) to.codes[0][q] = word(b + 2 + 4 * q) ^ 0x80808080u;
}
template <> void take<FormatId::q8_split>(const uint8_t* b, Unit& to) { take<FormatId::q8_0>(b, to); }
template <> void take<FormatId::q5_0>(const uint8_t* b, Unit& to) {
    to.scale = half(b);
    take_nibbles(b + 6, to.codes[0]);
    take_fifth_bits(word(b + 2), to.codes[0]);
}
template <> void take<FormatId::q5_1>(const uint8_t* b, Unit& to) {
    to.scale = half(b);
    to.minimum = half(b + 2);
    take_nibbles(b + 8, to.codes[0]);
    take_fifth_bits(word(b + 4), to.codes[0]);
}
template <> void take<FormatId::q4_k>(const uint8_t* b, Unit& to) {
    to.scale = half(b);
    to.minimum = half(b + 2);
    take_k_scales(b + 4, to);
    take_k_nibbles(b + 16, to);
}
template <> void take<FormatId::q5_k>(const uint8_t* b, Unit& to) {
    take<FormatId::q4_k>(b, to);
    take_k_nibbles(b + 48, to);
    for (int block = 0; block < 8; ++block)
        for (int q = 0; q < 8; ++q) to.codes[block][q] |= (word(b + 16 + 4 * q) >> block & kOnes) << 4;
}
template <> void take<FormatId::q6_k>(const uint8_t* b, Unit& to) {
    for (int block = 0; block < 8; ++block)
        for (int q = 0; q < 8; ++q) {
            const int part = block % 4;
            const uint32_t low = word(b + block / 4 * 64 + part % 2 * 32 + 4 * q) >> part / 2 * 4 & kNibbles;
            to.codes[block][q] = low | (word(b + 128 + block / 4 * 32 + 4 * q) >> part * 2 & kThrees) << 4;
        }
    std::memcpy(to.subs, b + 192, 16);
    to.scale = half(b + 208);
}
template <> void take<FormatId::q2_k>(const uint8_t* b, Unit& to) {
    for (int g = 0; g < 16; ++g) {
        to.subs[g] = b[g] & 15;
        to.sub_minima[g] = b[g] >> 4;
    }
    take_two_bits(b + 16, to);
    to.scale = half(b + 80);
    to.minimum = half(b + 82);
}
template <> void take<FormatId::q3_k>(const uint8_t* b, Unit& to) {
    take_two_bits(b + 32, to);
    for (int block = 0; block < 8; ++block)
        for (int q = 0; q < 8; ++q) to.codes[block][q] |= (word(b + 4 * q) >> block & kOnes) << 2;
    for (int g = 0; g < 16; ++g)
        to.subs[g] = uint8_t((b[96 + g % 8] >> g / 8 * 4 & 15) | (b[104 + g % 4] >> g / 4 * 2 & 3) << 4);
    to.scale = half(b + 108);
}
template <> void take<FormatId::iq4_xs>(const uint8_t* b, Unit& to) {
    to.scale = half(b);
    for (int g = 0; g < 8; ++g) {
        to.subs[g] = uint8_t((b[4 + g / 2] >> g % 2 * 4 & 15) | (half(b + 2) >> 2 * g & 3) << 4);
        take_nibbles(b + 8 + 16 * g, to.codes[g]);
    }
}

template <FormatId Id> constexpr int kFileBytes = 0;  // of a unit
template <> constexpr int kFileBytes<FormatId::q4_0> = 18;
template <> constexpr int kFileBytes<FormatId::iq4_nl> = 18;
template <> constexpr int kFileBytes<FormatId::q4_1> = 20;
template <> constexpr int kFileBytes<FormatId::mxfp4> = 17;
template <> constexpr int kFileBytes<FormatId::q8_0> = 34;
template <> constexpr int kFileBytes<FormatId::q8_split> = 34;
template <> constexpr int kFileBytes<FormatId::q5_0> = 22;
template <> constexpr int kFileBytes<FormatId::q5_1> = 24;
template <> constexpr int kFileBytes<FormatId::q4_k> = 144;
template <> constexpr int kFileBytes<FormatId::q5_k> = 176;
template <> constexpr int kFileBytes<FormatId::q6_k> = 210;
template <> constexpr int kFileBytes<FormatId::q2_k> = 84;
template <> constexpr int kFileBytes<FormatId::q3_k> = 110;
template <> constexpr int kFileBytes<FormatId::iq4_xs> = 136;

void put_word(uint8_t* line, int lane, uint32_t w) { std::memcpy(line + 4 * lane, &w, 4); }

uint32_t twos(const uint32_t* quads, int shift) {
    uint32_t packed = 0;
    for (int i = 0; i < 4; ++i) packed |= (quads[i] >> shift & kThrees) << 2 * i;
    return packed;
}

uint32_t ones(const uint32_t* quads, int shift) {
    uint32_t packed = 0;
    for (int q = 0; q < 8; ++q) packed |= (quads[q] >> shift & kOnes) << q;
    return packed;
}

// The `bits` of a block's quads from bit `shift` on, as lines at `to`.
void put_planes(const uint32_t* quads, int shift, int bits, uint8_t* to, int lane) {
    if (bits == 8) {
        for (int q = 0; q < 8; ++q) put_word(to + 64 * q, lane, quads[q]);
        return;
    }
    if (bits <= 3) {
        for (int j = 0; j < 2; ++j) put_word(to + 64 * j, lane, twos(quads + 4 * j, shift));
        if (bits == 3) put_word(to + 128, lane, ones(quads, shift + 2));
        return;
    }
    for (int i = 0; i < 4; ++i)
        put_word(to + 64 * i, lane, (quads[i] >> shift & kNibbles) | (quads[4 + i] >> shift & kNibbles) << 4);
    if (bits == 5) put_word(to + 256, lane, ones(quads, shift + 4));
    for (int j = 0; bits == 6 && j < 2; ++j) put_word(to + 256 + 64 * j, lane, twos(quads + 4 * j, shift + 4));
}

void put_sixes(const uint8_t* six, int n, uint8_t* to, int lane) {
    for (int g = 0; g < n / 2; ++g) to[16 * g + lane] = uint8_t((six[g] & 15) | (six[n / 2 + g] & 15) << 4);
    for (int j = 0; j < n / 4; ++j) {
        uint8_t& top = to[16 * (n / 2 + j) + lane];
        top = 0;
        for (int i = 0; i < 4; ++i) top = uint8_t(top | (six[4 * j + i] >> 4 & 3) << 2 * i);
    }
}

template <class F> void put_scales(const Unit& unit, uint8_t* to, int lane) {
    if constexpr (F::kScales == Scales::e8m0) {
        to[lane] = uint8_t(unit.scale);
        return;
    }
    std::memcpy(to + 2 * lane, &unit.scale, 2);
    if (F::kMinimum) std::memcpy(to + 32 + 2 * lane, &unit.minimum, 2);
    uint8_t* subs = to + F::kSuperBytes;
    for (int g = 0; F::kScales == Scales::bytes && g < F::kSubGroups; ++g) subs[16 * g + lane] = unit.subs[g];
    for (int g = 0; F::kScales == Scales::nibbles && g < F::kSubGroups; ++g)
        subs[16 * g + lane] = uint8_t(unit.subs[g] | unit.sub_minima[g] << 4);
    if constexpr (F::kScales == Scales::sixes) {
        put_sixes(unit.subs, F::kSubGroups, subs, lane);
        if (F::kMinimum) put_sixes(unit.sub_minima, F::kSubGroups, subs + F::kSubBytes, lane);
    }
}

template <class F, FormatId Id> void pack_panel(const uint8_t* rows, int n_rows, int n_blocks, uint8_t* panel) {
    const int64_t row_bytes = int64_t(n_blocks / F::kUnitBlocks) * kFileBytes<Id>;
    uint8_t *at = panel, *rest = panel + F::stream_bytes(n_blocks);
    if (n_rows < kPanelRows) std::memset(panel, 0, size_t(F::panel_bytes(n_blocks)));
    for (int first = 0; first < n_blocks; first += F::kSpan) {
        const int count = std::min(F::kSpan, n_blocks - first), units = count / F::kUnitBlocks;
        uint8_t* header = at;
        uint8_t* payload = at + F::header_bytes(count);
        std::memset(header + units * F::kUnitHeader, 0, size_t(F::header_bytes(count) - units * F::kUnitHeader));
        for (int lane = 0; lane < n_rows; ++lane) {
            for (int u = 0; u < units; ++u) {
                Unit unit;
                take<Id>(rows + lane * row_bytes + int64_t(first / F::kUnitBlocks + u) * kFileBytes<Id>, unit);
                put_scales<F>(unit, header + u * F::kUnitHeader, lane);
                for (int b = 0; b < F::kUnitBlocks; ++b) {
                    const int block = u * F::kUnitBlocks + b;
                    put_planes(unit.codes[b], F::kSplit ? 3 : 0, F::kInStream, payload + int64_t(block) * F::kPayload, lane);
                    if (F::kSplit) put_planes(unit.codes[b], 0, 3, rest + int64_t(first + block) * F::kRest, lane);
                }
            }
        }
        at = payload + int64_t(count) * F::kPayload;
    }
}

template <class F, FormatId Id> bool pack_all(const uint8_t* rows, int64_t n_rows, int n_blocks, uint8_t* panels) {
    if (n_blocks % F::kUnitBlocks) return false;
    const int64_t row_bytes = int64_t(n_blocks / F::kUnitBlocks) * kFileBytes<Id>;
    for (int64_t first = 0; first < n_rows; first += kPanelRows, panels += F::panel_bytes(n_blocks))
        pack_panel<F, Id>(rows + first * row_bytes, int(std::min<int64_t>(kPanelRows, n_rows - first)), n_blocks, panels);
    return true;
}

}  // namespace

bool pack_rows(FormatId id, const uint8_t* rows, int64_t n_rows, int n_blocks, uint8_t* panels) {
    switch (id) {
        case FormatId::q4_0: return pack_all<Q4_0, FormatId::q4_0>(rows, n_rows, n_blocks, panels);
        case FormatId::q4_1: return pack_all<Q4_1, FormatId::q4_1>(rows, n_rows, n_blocks, panels);
        case FormatId::q4_k: return pack_all<Q4_K, FormatId::q4_k>(rows, n_rows, n_blocks, panels);
        case FormatId::q2_k: return pack_all<Q2_K, FormatId::q2_k>(rows, n_rows, n_blocks, panels);
        case FormatId::q3_k: return pack_all<Q3_K, FormatId::q3_k>(rows, n_rows, n_blocks, panels);
        case FormatId::iq4_nl: return pack_all<IQ4_NL, FormatId::iq4_nl>(rows, n_rows, n_blocks, panels);
        case FormatId::iq4_xs: return pack_all<IQ4_XS, FormatId::iq4_xs>(rows, n_rows, n_blocks, panels);
        case FormatId::mxfp4: return pack_all<MXFP4, FormatId::mxfp4>(rows, n_rows, n_blocks, panels);
        case FormatId::q8_0: return pack_all<Q8_0, FormatId::q8_0>(rows, n_rows, n_blocks, panels);
        case FormatId::q5_0: return pack_all<Q5_0, FormatId::q5_0>(rows, n_rows, n_blocks, panels);
        case FormatId::q5_1: return pack_all<Q5_1, FormatId::q5_1>(rows, n_rows, n_blocks, panels);
        case FormatId::q5_k: return pack_all<Q5_K, FormatId::q5_k>(rows, n_rows, n_blocks, panels);
        case FormatId::q6_k: return pack_all<Q6_K, FormatId::q6_k>(rows, n_rows, n_blocks, panels);
        case FormatId::q8_split: return pack_all<Q8_Split, FormatId::q8_split>(rows, n_rows, n_blocks, panels);
        default: return false;
    }
}

namespace {

// Can be undone, so no change of a single word is lost; the upper bits come down, so two changes hardly cancel.
inline uint32_t mixed(uint32_t lane, uint32_t w) {
    lane = (lane ^ w) * 0x9e3779b1u;
    return lane ^ lane >> 15;
}

}  // namespace

uint64_t digest_of(const uint32_t* words, int64_t n) {
    constexpr int kLanes = 64;
    uint32_t lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = 0x811c9dc5u + uint32_t(i);
    int64_t at = 0;
    for (; at + kLanes <= n; at += kLanes)
        for (int i = 0; i < kLanes; ++i) lanes[i] = mixed(lanes[i], words[at + i]);
    for (; at < n; ++at) lanes[at % kLanes] = mixed(lanes[at % kLanes], words[at]);
    uint64_t sum = uint64_t(n);
    for (const uint32_t lane : lanes) sum = (sum ^ lane) * 0x9e3779b97f4a7c15ull;
    return sum;
}

}  // namespace imp
