// Vectors of keys and values in their cache form (backends/cuda/operations.py, LayerKv).
#pragma once

#include "blocks.h"

enum KvType { kKvF32, kKvBf16, kKvFp8, kKvInt8, kKvInt4, kKvNvfp4 };
constexpr i32 kBlockTokens = 16;

// One part of a layer: of head h of block b, 16 vectors from byte b block_bytes + values + h stride on, their scales alike.
struct KvPart {
    Global<u8> pool;
    i64 block_bytes, values, scales, stride;
};

template <int kType>
struct KvForm {
    static constexpr int kBits = kType == kKvF32 ? 32 : kType == kKvBf16 ? 16 : kType >= kKvInt4 ? 4 : 8;
    static constexpr int kPerLoad = 128 / kBits;  // numbers in 16 bytes
    static constexpr bool kScaled = kType == kKvInt8;  // a scale for each vector
    static constexpr int kGroup = kType == kKvInt4 ? 32 : kType == kKvNvfp4 ? 16 : 0;  // neighbours that share a scale
};

template <int kType>
DEVICE i64 vector_bytes(i32 size) { return i64(size) * KvForm<kType>::kBits / 8; }

// A signed byte plus 128 as a float, less 128: exact, without a conversion.
DEVICE f32 biased_byte(u32 bytes, u32 index) { return float_of(permute_bytes(bytes, 0x4B000000u, 0x7440u | index)) - 8388736.0f; }

// The numbers of 16 bytes, without their scale.
template <int kType>
DEVICE void unpack(const U32x4& packed, f32 (&out)[KvForm<kType>::kPerLoad]) {
    UNROLL for (int w = 0; w < 4; w++) {
        u32 word = packed.v[w];
        if constexpr (kType == kKvF32) {
            out[w] = float_of(word);
        } else if constexpr (kType == kKvBf16) {
            out[2 * w] = low_bf16(word);
            out[2 * w + 1] = high_bf16(word);
        } else if constexpr (kType == kKvFp8) {
            UNROLL for (int i = 0; i < 4; i++) out[4 * w + i] = to_float(e4m3{u8(word >> 8 * i)});
        } else if constexpr (kType == kKvInt8) {
            UNROLL for (int i = 0; i < 4; i++) out[4 * w + i] = biased_byte(word ^ 0x80808080u, i);
        } else if constexpr (kType == kKvInt4) {
            word ^= 0x88888888u;
            UNROLL for (int i = 0; i < 8; i++) out[8 * w + i] = float_of(0x4B000000u | (word >> 4 * i & 15)) - 8388616.0f;
        } else {
            // The three bits are the end of a float's exponent and the first of its fraction.
            UNROLL for (int i = 0; i < 8; i++) {
                u32 code = word >> 4 * i;
                out[8 * w + i] = float_of((code & 7) << 22 | (code & 8) << 28) * 8.507059173023462e37f;
            }
        }
    }
}

// Where neighbours share scales: those of 16 bytes, whose first number is `first` of vector `slot`. `scales`: of vector 0.
template <int kType>
DEVICE void apply_scales(Global<const u8> scales, i32 slot, i32 size, i32 first, f32 (&out)[KvForm<kType>::kPerLoad]) {
    constexpr int kGroup = KvForm<kType>::kGroup;
    if constexpr (kGroup != 0) {
        i32 at = slot * (size / kGroup) + first / kGroup;
        UNROLL for (int g = 0; g < KvForm<kType>::kPerLoad / kGroup; g++) {
            f32 scale;
            if constexpr (kType == kKvInt4) scale = to_float(f16(cast<const f16>(scales)[at + g]));
            if constexpr (kType == kKvNvfp4) scale = to_float(e4m3(cast<const e4m3>(scales)[at + g]));
            UNROLL for (int i = 0; i < kGroup; i++) out[g * kGroup + i] *= scale;
        }
    }
}

// A number's code of four bits, and the scale of its group, which is written; by all lanes, of 32 neighbours.
template <int kType>
DEVICE u32 four_bits(f32 x, Global<u8> scales, i32 group) {
    constexpr u32 kGroup = KvForm<kType>::kGroup;
    f32 top = magnitude(x);
    UNROLL for (u32 flip = kGroup / 2; flip; flip /= 2) top = most(top, shuffle_xor(top, flip));
    bool writes = lane_index() % kGroup == 0;
    if constexpr (kType == kKvInt4) {
        f16 scale = to_f16(least(quotient(top, 7.0f), 65504.0f));
        if (writes) cast<f16>(scales)[group] = scale;
        f32 step = to_float(scale);
        i32 code = step > 0.0f ? to_int_even(quotient(x, step)) : 0;
        return u32(code < -8 ? -8 : code > 7 ? 7 : code) & 15;
    } else {
        e4m3 scale = to_e4m3(quotient(top, 6.0f));
        if (writes) cast<e4m3>(scales)[group] = scale;
        f32 step = to_float(scale), size = step > 0.0f ? quotient(magnitude(x), step) : 0.0f;
        u32 code = u32(size > 0.25f) + u32(size >= 0.75f) + u32(size > 1.25f) + u32(size >= 1.75f) + u32(size > 2.5f) + u32(size >= 3.5f) + u32(size > 5.0f);
        return code | (x < 0.0f ? 8u : 0u);
    }
}

// Writes vector `slot` of head `head`: a warp, from shared memory.
template <int kType>
DEVICE void store_vector(const KvPart& part, i64 block, i32 head, i32 slot, Shared<const f32> x, i32 size) {
    i64 first = block * part.block_bytes + head * part.stride;
    auto values = part.pool + (first + part.values + slot * vector_bytes<kType>(size));
    i32 lane = i32(lane_index());
    if constexpr (KvForm<kType>::kGroup != 0) {  // sizes are multiples of 32
        constexpr i32 kGroup = KvForm<kType>::kGroup;
        auto scales = part.pool + (first + part.scales);
        for (i32 i = lane; i < size; i += 32) {
            u32 code = four_bits<kType>(x[i], scales, slot * (size / kGroup) + i / kGroup);
            u32 next = shuffle_xor(code, 1);
            if (lane % 2 == 0) values[i / 2] = u8(code | next << 4);
        }
        return;
    }
    f32 inverse = 0.0f;
    if constexpr (kType == kKvInt8) {
        f32 top = 0.0f;
        for (i32 i = lane; i < size; i += 32) top = most(top, magnitude(x[i]));
        top = warp_most(top);
        bool alive = top >= 1e-30f;
        inverse = alive ? quotient(127.0f, top) : 0.0f;
        if (lane == 0) cast<f32>(part.pool + (first + part.scales))[slot] = alive ? quotient(top, 127.0f) : 0.0f;
    }
    for (i32 i = lane; i < size; i += 32) {
        if constexpr (kType == kKvF32) cast<f32>(values)[i] = x[i];
        if constexpr (kType == kKvBf16) cast<bf16>(values)[i] = to_bf16(x[i]);
        if constexpr (kType == kKvFp8) cast<e4m3>(values)[i] = to_e4m3(x[i]);
        if constexpr (kType == kKvInt8) values[i] = u8(to_int_even(x[i] * inverse));
    }
}
