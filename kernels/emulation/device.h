// What kernels/cuda/device.h gives kernels, on the machine of machine.h. Semantics are those of the PTX manual (ISA 8.x):
// the section is named where it isn't plain. Approximate functions are off by as much as the manual allows, either way.
#pragma once

#include <algorithm>
#include <cmath>

#include "machine.h"

#define DEVICE inline
#define KERNEL(threads) void
#define BUSY_KERNEL(threads, blocks) void
#define EXPORT(name) static emu::Kernel exported_##name(#name, emu::Entered<&name>::run, emu::Entered<&name>::kArgs)
#define UNROLL
#define UNROLL_BY(n)
#define HERE int site = __builtin_LINE()

// --- Where a thread is.

DEVICE u32 thread_index() { return emu::current().index; }
DEVICE u32 n_threads() { return emu::launch().n_threads; }
DEVICE u32 block_x() { return emu::current().block->index[0]; }
DEVICE u32 block_y() { return emu::current().block->index[1]; }
DEVICE u32 block_z() { return emu::current().block->index[2]; }
DEVICE u32 n_blocks_x() { return emu::launch().grid[0]; }
DEVICE u32 n_blocks_y() { return emu::launch().grid[1]; }

// --- Memory.

template <class T>
class Reference {
  public:
    using Value = std::remove_const_t<T>;
    Reference(T* at, emu::Region* region) : at_(at), region_(region) {}
    operator Value() const {
        region_->read(at_, sizeof(T), sizeof(T));
        return *at_;
    }
    const Reference& operator=(const Value& value) const {
        region_->write(at_, sizeof(T), sizeof(T));
        *at_ = value;
        return *this;
    }
    const Reference& operator=(const Reference& other) const { return *this = Value(other); }
    Reference(const Reference&) = default;

  private:
    T* at_;
    emu::Region* region_;
};

template <class T, bool kShared>
struct Pointer {
    T* at = nullptr;
    emu::Region* region = nullptr;
    Pointer() = default;
    Pointer(T* at, emu::Region* region) : at(at), region(region) {}
    template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
    Pointer(const Pointer<U, kShared>& other) : at(other.at), region(other.region) {}
    Reference<T> operator[](i64 i) const { return {at + i, region}; }
    Pointer operator+(i64 n) const { return {at + n, region}; }
    explicit operator bool() const { return at != nullptr; }
};
template <class T>
using Global = Pointer<T, false>;
template <class T>
using Shared = Pointer<T, true>;

template <class U, class T, bool kShared>
DEVICE Pointer<U, kShared> cast(Pointer<T, kShared> p) {
    return {reinterpret_cast<U*>(p.at), p.region};
}
template <class T>
DEVICE Global<T> global_at(u64 address) {
    return {reinterpret_cast<T*>(address), emu::region_of(address)};
}
template <class T>
struct emu::Argument<Global<T>> {
    static Global<T> read(const uint64_t& bits) { return global_at<T>(bits); }
};

#define SHARED(type, name, count) \
    static const char name##_site = 0; \
    emu::Region* name##_region = emu::shared_region(&name##_site, sizeof(type) * (count), 16, #name); \
    const Shared<type> name{reinterpret_cast<type*>(name##_region->base), name##_region}
template <class T>
DEVICE Shared<T> dynamic_shared(u32 byte_offset) {
    emu::Region* region = emu::dynamic_region();
    return {reinterpret_cast<T*>(region->base + byte_offset), region};
}

template <class V, class T, bool kShared>
DEVICE V load_as(Pointer<T, kShared> p) {
    p.region->read(p.at, sizeof(V), sizeof(V));
    V value;
    std::memcpy(&value, p.at, sizeof(V));
    return value;
}
template <class V, class T, bool kShared>
DEVICE void store_as(Pointer<T, kShared> p, const V& value) {
    p.region->write(p.at, sizeof(V), sizeof(V));
    std::memcpy(p.at, &value, sizeof(V));
}
template <class T>
DEVICE U32x4 load_stream(Global<const T> p) {
    return load_as<U32x4>(p);
}
template <class T>
DEVICE void prefetch(Global<const T>) {}

DEVICE void copy_async_bytes(emu::Region* target, void* to, emu::Region* source, const void* from, u32 n_zeros) {
    if (n_zeros > 16) emu::fail("an asynchronous copy of 16 bytes with more than 16 zeros");
    target->begin_copy(to, 16);
    if (n_zeros < 16) source->check(from, 16 - n_zeros, 16, "an asynchronous copy");
    emu::current().open.push_back({target, source, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), 16, n_zeros});
}
template <class T, class U>
DEVICE void copy_async(Shared<T> to, Global<const U> from, bool is_there = true) {
    copy_async_bytes(to.region, to.at, from.region, from.at, is_there ? 0 : 16);
}
DEVICE void commit_copies() { emu::commit_copies(); }
template <int kLeft>
DEVICE void await_copies() {
    emu::await_copies(kLeft);
}

template <bool kShared>
DEVICE u32 atomic_add(Pointer<u32, kShared> p, u32 value) {
    p.region->atomic(p.at, 4);
    return std::exchange(*p.at, *p.at + value);
}
DEVICE u64 atomic_add(Shared<u64> p, u64 value) {
    p.region->atomic(p.at, 8);
    return std::exchange(*p.at, *p.at + value);
}
DEVICE u32 atomic_or(Global<u32> p, u32 value) {
    p.region->atomic(p.at, 4);
    return std::exchange(*p.at, *p.at | value);
}
DEVICE u64 atomic_max(Global<u64> p, u64 value) {
    p.region->atomic(p.at, 8);
    return std::exchange(*p.at, std::max(*p.at, value));
}

// --- Threads that meet.

DEVICE void barrier(HERE) { emu::block_barrier(site); }
DEVICE void warp_barrier(u32 mask = kAllLanes, HERE) { emu::warp_sync(mask, site); }
DEVICE void await_predecessor() { emu::await_predecessor(); }
DEVICE void release_successor() {}

enum { kShuffle, kVote, kMatrix, kProduct, kProduct8 };

template <class T>
DEVICE T shuffle(T value, u32 from, u32 mask = kAllLanes, HERE) {
    return emu::Gathered(kShuffle, mask, &value, sizeof value, site).of<T>(from % 32);
}
template <class T>
DEVICE T shuffle_xor(T value, u32 flip, u32 mask = kAllLanes, HERE) {
    return emu::Gathered(kShuffle, mask, &value, sizeof value, site).of<T>((emu::current().lane() ^ flip) % 32);
}
// Lanes without one above them keep their own.
template <class T>
DEVICE T shuffle_up(T value, u32 by, u32 mask = kAllLanes, HERE) {
    u32 lane = emu::current().lane();
    return emu::Gathered(kShuffle, mask, &value, sizeof value, site).of<T>(lane < by ? lane : lane - by);
}
DEVICE u32 vote(bool value, u32 mask = kAllLanes, HERE) {
    emu::Gathered all(kVote, mask, &value, sizeof value, site);
    u32 bits = 0;
    for (u32 lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) bits |= u32(all.of<bool>(lane)) << lane;
    return bits;
}

// --- Bits. Shifts by 32 and more shift everything out (9.7.8.6, shl and shr clamp).

DEVICE u32 shift_left(u32 a, u32 n) { return n > 31 ? 0 : a << n; }
DEVICE u32 shift_right(u32 a, u32 n) { return n > 31 ? 0 : a >> n; }
DEVICE u32 bits_of(f32 x) {
    u32 bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
DEVICE f32 float_of(u32 bits) {
    f32 x;
    std::memcpy(&x, &bits, 4);
    return x;
}
DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) {  // prmt.b32, its default mode
    u64 all = u64(b) << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; i++) {
        u32 pick = selector >> 4 * i & 15, byte = all >> 8 * (pick & 7) & 255;
        out |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return out;
}
DEVICE u32 count_bits(u32 a) { return __builtin_popcount(a); }
DEVICE i32 leading_zeros(u64 a) { return a ? __builtin_clzll(a) : 64; }
DEVICE u32 high_product(u32 a, u32 b) { return u64(a) * b >> 32; }

// Four signed products (dp4a).
DEVICE i32 dot4(u32 a, u32 b, i32 c) {
    u32 sum = c;
    for (int i = 0; i < 4; i++) sum += i32(int8_t(a >> 8 * i)) * int8_t(b >> 8 * i);
    return i32(sum);
}
// `a` unsigned.
DEVICE i32 dot4_unsigned(u32 a, u32 b, i32 c) {
    u32 sum = c;
    for (int i = 0; i < 4; i++) sum += i32(uint8_t(a >> 8 * i)) * int8_t(b >> 8 * i);
    return i32(sum);
}

// --- Numbers.

DEVICE f32 fused(f32 a, f32 b, f32 c) { return std::fma(a, b, c); }
DEVICE f32 least(f32 a, f32 b) {  // min.f32: of a NaN and a number, the number; -0 is less than 0
    if (a != a || b != b) return a != a ? b : a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}
DEVICE f32 most(f32 a, f32 b) {
    if (a != a || b != b) return a != a ? b : a;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
}
DEVICE f32 magnitude(f32 x) { return std::fabs(x); }
DEVICE f32 round_even(f32 x) { return std::nearbyint(x); }
DEVICE i32 to_int_even(f32 x) {  // cvt.rni.s32.f32: saturates, NaN is 0
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 2147483647;
    if (x <= -2147483648.0f) return -2147483647 - 1;
    return i32(std::nearbyint(x));
}
DEVICE f64 log_f64(f64 x) { return std::log(x); }
DEVICE f64 exp_f64(f64 x) { return std::exp(x); }
DEVICE f32 square_root(f32 x) { return std::sqrt(x); }
DEVICE f32 error_function(f32 x) { return std::erf(x); }
DEVICE f32 quotient(f32 a, f32 b) { return a / b; }

DEVICE f32 flushed(f32 x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x; }
DEVICE f32 off_by(f64 exact, f64 relative, f64 absolute, u32 key) {
    f64 share = f64(emu::mixed(key) >> 11) * 0x1p-52 - 1.0;
    if (!std::isfinite(exact) || exact == 0.0) return f32(exact);
    return f32(exact + share * (std::fabs(exact) * relative + absolute));
}
DEVICE f32 exp2_approx(f32 x) {  // 2 ulp; of 0 it is 1
    x = flushed(x);
    return x == 0.0f ? 1.0f : flushed(off_by(std::exp2(f64(x)), 0x1p-22, 0, bits_of(x)));
}
DEVICE f32 log2_approx(f32 x) {
    f64 exact = std::log2(f64(flushed(x)));
    return off_by(exact, 0, x > 0.5f && x < 2.0f ? 0x1p-22 : std::fabs(exact) * 0x1p-22, bits_of(x));
}
DEVICE f32 reciprocal_approx(f32 x) { return flushed(off_by(1.0 / f64(flushed(x)), 0x1p-23, 0, bits_of(x))); }
DEVICE f32 root_reciprocal_approx(f32 x) { return off_by(1.0 / std::sqrt(f64(flushed(x))), 0x1p-22, 0, bits_of(x)); }

DEVICE f32 to_float(bf16 x) { return float_of(u32(x.bits) << 16); }
DEVICE bf16 to_bf16(f32 x) {  // cvt.rn.bf16.f32: NaN is 0x7FFF
    u32 bits = bits_of(x);
    if (x != x) return {0x7FFF};
    return {u16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
DEVICE f32 to_float(f16 x) {
    u32 sign = u32(x.bits >> 15) << 31, exponent = x.bits >> 10 & 31, part = x.bits & 1023;
    if (exponent == 31) return float_of(sign | 0x7F800000 | part << 13);
    if (exponent) return float_of(sign | (exponent + 112) << 23 | part << 13);
    f32 small = f32(part) * 0x1p-24f;
    return sign ? -small : small;
}
DEVICE f16 to_f16(f32 x) {
    if (x != x) return {0x7FFF};
    f32 size = std::fabs(x);
    u16 sign = std::signbit(x) ? 0x8000 : 0;
    if (size >= 65520.0f) return {u16(sign | 0x7C00)};
    if (size < 0x1p-14f) return {u16(sign | u16(std::nearbyint(size * 0x1p24f)))};
    u32 bits = bits_of(size) - (112u << 23);
    return {u16(sign | (bits + 0xFFF + (bits >> 13 & 1)) >> 13)};
}
DEVICE f32 to_float(e4m3 x) {
    u32 exponent = x.bits >> 3 & 15, part = x.bits & 7;
    f32 size = exponent ? std::ldexp(1.0f + f32(part) / 8, int(exponent) - 7) : f32(part) * 0x1p-9f;
    if ((x.bits & 127) == 127) return float_of(0x7FFFFFFF);
    return x.bits & 128 ? -size : size;
}
DEVICE e4m3 to_e4m3(f32 x) {  // cvt.rn.satfinite.e4m3x2.f32
    if (x != x) return {0x7F};
    u8 sign = std::signbit(x) ? 128 : 0;
    f32 size = std::fabs(x);
    if (size >= 464.0f) return {u8(sign | 0x7E)};
    if (size < 0x1p-6f) return {u8(sign | u8(std::nearbyint(size * 512)))};
    u32 bits = bits_of(size) - (120u << 23);
    return {u8(sign | std::min<u32>((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20, 0x7E))};
}

// --- Tensor cores.

// Four 8 x 8 matrices of 16-bit numbers; lane 8 m + r brings the address of row r of matrix m, and lane l gets elements
// 2 (l % 4), + 1 of row l / 4 of each (9.7.14.5.15, ldmatrix); transposed: of column l / 4.
template <class T>
DEVICE U32x4 load_matrices(Shared<const T> row, bool transposed, int site) {
    struct Row {
        const u8* at;
        emu::Region* region;
    } mine{reinterpret_cast<const u8*>(row.at), row.region};
    emu::Gathered rows(kMatrix, kAllLanes, &mine, sizeof mine, site);
    u32 lane = emu::current().lane();
    U32x4 out;
    for (u32 m = 0; m < 4; m++) {
        u32 pair = 0;
        for (u32 i = 0; i < 2; i++) {
            u32 line = transposed ? 2 * (lane % 4) + i : lane / 4, column = transposed ? lane / 4 : 2 * (lane % 4) + i;
            Row from = rows.of<Row>(8 * m + line);
            from.region->check(from.at, 16, 16, "a row of ldmatrix");
            from.region->read(from.at + 2 * column, 2, 2);
            u16 value;
            std::memcpy(&value, from.at + 2 * column, 2);
            pair |= u32(value) << 16 * i;
        }
        out.v[m] = pair;
    }
    return out;
}
template <class T>
DEVICE U32x4 ldmatrix(Shared<T> row, HERE) {
    return load_matrices(Shared<const T>(row), false, site);
}
template <class T>
DEVICE U32x4 ldmatrix_transposed(Shared<T> row, HERE) {
    return load_matrices(Shared<const T>(row), true, site);
}

// c + the sum of 16 products: rounded once, or aligned to the largest, cut off behind 24 bits, in a random order.
DEVICE f32 summed(f32 c, const f64* products, int n) {
    if (emu::rules().sums == int32_t(emu::Sums::exact)) {
        long double sum = c;
        for (int i = 0; i < n; i++) sum += products[i];
        return f32(sum);
    }
    f32 acc = c;
    int group = 4 << emu::draw() % 3;
    u64 start = emu::draw() % n;
    for (int first = 0; first < n; first += group) {
        f64 top = std::fabs(acc);
        for (int i = 0; i < group; i++) top = std::max(top, std::fabs(products[(start + first + i) % n]));
        if (!std::isfinite(top) || top == 0.0) {
            for (int i = 0; i < group; i++) acc += f32(products[(start + first + i) % n]);
            continue;
        }
        f64 unit = std::ldexp(1.0, std::ilogb(top) - 23);
        f64 sum = std::trunc(acc / unit);
        for (int i = 0; i < group; i++) sum += std::trunc(products[(start + first + i) % n] / unit);
        f64 whole = sum * unit;
        f32 rounded = f32(whole);
        if (std::fabs(f64(rounded)) > std::fabs(whole)) rounded = std::nextafter(rounded, 0.0f);
        acc = rounded;
    }
    return acc;
}

// d = a b + d with a 16 x 16, b 16 x 8, d 16 x 8 (9.7.14.5.8, mma.m16n8k16). With g = lane / 4, t = lane % 4:
// a[i] holds rows g + 8 (i % 2), columns 2 t + 8 (i / 2), + 1; b[i] rows 2 t + 8 i, + 1 of column g;
// d[i] row g + 8 (i / 2), column 2 t + i % 2.
DEVICE void mma_bf16(f32 (&d)[4], const U32x4& a, u32 b0, u32 b1, HERE) {
    struct Part {
        u32 a[4], b[2];
    } mine{{a.v[0], a.v[1], a.v[2], a.v[3]}, {b0, b1}};
    emu::Gathered all(kProduct, kAllLanes, &mine, sizeof mine, site);
    u32 lane = emu::current().lane();
    for (u32 i = 0; i < 4; i++) {
        u32 row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        f64 products[16];
        for (u32 k = 0; k < 16; k++) {
            Part left = all.of<Part>(row % 8 * 4 + k % 8 / 2), right = all.of<Part>(column * 4 + k % 8 / 2);
            u32 x = left.a[row / 8 + 2 * (k / 8)] >> 16 * (k % 2), y = right.b[k / 8] >> 16 * (k % 2);
            products[k] = f64(to_float(bf16{u16(x)})) * to_float(bf16{u16(y)});
        }
        d[i] = summed(d[i], products, 16);
    }
}
