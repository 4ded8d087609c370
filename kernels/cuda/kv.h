// Vectors of keys and values in their cache form (backends/cuda/operations.py, LayerKv).
#pragma once

#include "blocks.h"

enum KvType { kKvF32, kKvBf16, kKvFp8, kKvInt8 };
constexpr i32 kBlockTokens = 16;

// One part of a layer: of head h of block b, 16 vectors from byte b block_bytes + values + h stride on, their scales alike.
struct KvPart {
    Global<u8> pool;
    i64 block_bytes, values, scales, stride;
};

template <int kType>
struct KvForm {
    static constexpr int kBytes = kType == kKvF32 ? 4 : kType == kKvBf16 ? 2 : 1;
    static constexpr int kPerLoad = 16 / kBytes;  // numbers in 16 bytes
    static constexpr bool kScaled = kType == kKvInt8;
};

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
        } else {
            UNROLL for (int i = 0; i < 4; i++) out[4 * w + i] = biased_byte(word ^ 0x80808080u, i);
        }
    }
}

// Writes vector `slot` of head `head`: a warp, from shared memory.
template <int kType>
DEVICE void store_vector(const KvPart& part, i64 block, i32 head, i32 slot, Shared<const f32> x, i32 size) {
    i64 first = block * part.block_bytes + head * part.stride;
    auto values = part.pool + (first + part.values + i64(slot) * size * KvForm<kType>::kBytes);
    i32 lane = i32(lane_index());
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
