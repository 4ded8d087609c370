// Packed weights (backends/cuda/formats.py): a block of 32 inputs of a row as whole numbers, and its scales.
//
// FLOATS: 0 = packed, 1 F16, 2 BF16, 3 F32. Packed: BITS, GROUP (16, 32), MINIMUM, ZERO, TABLE (0, 1 IQ4, 2 twice E2M1,
// 3 E2M1), SCALES (0 f16, 1 e8m0, 2 two levels, 3 by row, 4 e4m3), FLOAT8.
#pragma once

#include "device.h"

#ifndef FLOATS
#define FLOATS 0
#endif
#if FLOATS
#define BITS 16
#define GROUP 32
#define MINIMUM 0
#define ZERO 0
#define TABLE 0
#define SCALES 3
#define FLOAT8 0
#endif

constexpr int kUnit = FLOATS == 0 ? 32 : FLOATS == 3 ? 4 : 8;  // inputs that a lane takes at once
constexpr int kQuads = kUnit / 4;
constexpr int kGroups = FLOATS ? 1 : 32 / GROUP;
constexpr int kLow = FLOATS ? 0 : BITS == 8 ? 8 : BITS <= 3 ? 2 : 4;  // bits in the plane of codes
constexpr int kHigh = FLOATS ? 0 : BITS - kLow;
constexpr int kCodeWords = FLOATS ? 4 : kLow;  // of 4 bytes
enum Scales { kScalesF16, kScalesE8m0, kScalesTwo, kScalesRow, kScalesE4m3 };

struct Matrix {
    Global<const u8> codes, high, scale, minimum, sub_scale, sub_minimum;
    f32 whole_scale;
    i32 n_out, n_in;
};

// A unit of a row as it lies in memory.
struct Packed {
    u32 code[kCodeWords], high[kHigh ? 2 : 1];
};

DEVICE Packed load_unit(const Matrix& m, i64 row, i32 unit, i32 n_units) {
    Packed p;
    i64 at = row * n_units + unit;
    if constexpr (kCodeWords == 2) {
        U32x2 word = load_as<U32x2>(m.codes + 8 * at);
        p.code[0] = word.v[0];
        p.code[1] = word.v[1];
    } else {
        UNROLL for (int i = 0; i < kCodeWords / 4; i++) {
            U32x4 words = load_stream(m.codes + (4 * kCodeWords * at + 16 * i));
            UNROLL for (int w = 0; w < 4; w++) p.code[4 * i + w] = words.v[w];
        }
    }
    p.high[0] = 0;
    if constexpr (kHigh == 1) p.high[0] = load_as<u32>(m.high + 4 * at);
    if constexpr (kHigh == 2) {
        U32x2 word = load_as<U32x2>(m.high + 8 * at);
        p.high[0] = word.v[0];
        p.high[1] = word.v[1];
    }
    return p;
}

// 16 signed bytes plus 128, looked up by four codes: the lower 16 bits of `codes`.
DEVICE u32 looked_up(u32 codes) {
#if TABLE == 1
    constexpr u32 t0 = 0x3F2D1801, t1 = 0x766A5D4F, t2 = 0xA6998D81, t3 = 0xF1D9C5B5;
#else
    constexpr u32 t0 = 0x83828180, t1 = 0x8C888684, t2 = 0x7D7E7F80, t3 = 0x74787A7C;
#endif
    u32 low = permute_bytes(t0, t1, codes & 0x7777), high = permute_bytes(t2, t3, codes & 0x7777);
    return permute_bytes(low, high, 0x3210 | (codes >> 1 & 0x4444));
}

#if !FLOATS
// Four codes, one in a byte, as exact numbers without their scale.
DEVICE void bytes_to_floats(u32 bytes, f32 (&out)[4]) {
    if constexpr (TABLE != 0) {
        u32 pairs = bytes | bytes >> 4;
        bytes = looked_up(permute_bytes(pairs, 0, 0x4420));
    }
    constexpr int zero = TABLE ? 128 : ZERO;
    UNROLL for (int j = 0; j < 4; j++) {
        if constexpr (FLOAT8) {
            out[j] = float_of(u32(i32(bytes << (24 - 8 * j)) >> 4) & 0x87F00000u) * 0x1p120f;
        } else {
            out[j] = float_of(permute_bytes(bytes, 0x4B000000u, 0x7440u | j)) - (8388608.0f + zero);
        }
    }
}
#endif

// Inputs 4 i .. 4 i + 3 of a unit: exact numbers without their scale.
DEVICE void unpack_quad(const Packed& p, int i, f32 (&out)[4]) {
#if FLOATS
    UNROLL for (int j = 0; j < 4; j++) {
        if constexpr (FLOATS == 3) out[j] = float_of(p.code[j]);
        if constexpr (FLOATS == 2) out[j] = j % 2 ? high_bf16(p.code[2 * i + j / 2]) : low_bf16(p.code[2 * i + j / 2]);
        if constexpr (FLOATS == 1) out[j] = to_float(f16{u16(p.code[2 * i + j / 2] >> 16 * (j % 2))});
    }
#elif TABLE
    // A word has inputs k (low nibbles) and 16 + k (high ones) of four k.
    UNROLL for (int j = 0; j < 4; j++) {
        u32 found = looked_up(p.code[i % 4] >> 16 * (j / 2));
        out[j] = float_of(permute_bytes(found, 0x4B000000u, 0x7440u | (2 * (j % 2) + i / 4))) - (8388608.0f + 128);
    }
#else
    u32 bytes;
    if constexpr (kLow == 8) bytes = p.code[i];
    if constexpr (kLow == 4) bytes = p.code[i % 4] >> 4 * (i / 4) & 0x0F0F0F0Fu;
    if constexpr (kLow == 2) bytes = p.code[i % 2] >> 2 * (i / 2) & 0x03030303u;
    if constexpr (kHigh == 1) bytes |= ((p.high[0] >> 4 * i & 15) * 0x00204081u & 0x01010101u) << kLow;
    if constexpr (kHigh == 2) bytes |= (p.high[i % 2] >> 2 * (i / 2) & 0x03030303u) << kLow;
    bytes_to_floats(bytes, out);
#endif
}

DEVICE f32 half_at(Global<const u8> plane, i64 i) { return to_float(f16(cast<const f16>(plane)[i])); }

DEVICE f32 scale_of(const Matrix& m, i64 row, i32 block, i32 n_blocks, int group) {
    if constexpr (SCALES == kScalesF16) return half_at(m.scale, row * n_blocks + block);
    if constexpr (SCALES == kScalesE8m0) {
        u32 e = m.scale[row * n_blocks + block];
        return float_of(e > 1 ? (e - 1) << 23 : 0x200000u << e);
    }
    if constexpr (SCALES == kScalesTwo) {
        i32 n_supers = (n_blocks + 7) / 8;
        i32 sub = i32((signed char)(u8(m.sub_scale[(row * n_blocks + block) * kGroups + group])));
        return half_at(m.scale, row * n_supers + block / 8) * f32(sub);
    }
    if constexpr (SCALES == kScalesE4m3) {
        u8 bits = m.scale[(row * n_blocks + block) * 2 + group];
        return to_float(e4m3{bits}) * m.whole_scale * (TABLE == 3 ? 0.5f : 1.0f);
    }
    return FLOATS ? 1.0f : f32(cast<const f32>(m.scale)[row]);
}

DEVICE f32 minimum_of(const Matrix& m, i64 row, i32 block, i32 n_blocks, int group) {
    if constexpr (SCALES != kScalesTwo) return half_at(m.minimum, row * n_blocks + block);
    i32 n_supers = (n_blocks + 7) / 8;
    i32 sub = i32((signed char)(u8(m.sub_minimum[(row * n_blocks + block) * kGroups + group])));
    return -(half_at(m.minimum, row * n_supers + block / 8) * f32(sub));
}
