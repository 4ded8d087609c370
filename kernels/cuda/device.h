// All that kernels use of the device: intrinsics, memory, meeting threads, conversions. Kernels include this file and
// nothing else of the toolkit, so that the same sources run on a CPU (kernels/emulation) and compile without its headers.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};
struct e4m3 {
    u8 bits;
};
struct alignas(8) U32x2 {
    u32 v[2];
};
struct alignas(16) U32x4 {
    u32 v[4];
};

constexpr u32 kAllLanes = 0xFFFFFFFFu;

#ifdef IMP_EMULATION
#include "../emulation/device.h"
#else

#define DEVICE static __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define BUSY_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)  // at once
#define EXPORT(name) static_assert(true)
#define UNROLL _Pragma("unroll")
#define PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(n) PRAGMA(unroll n)

// --- Where a thread is.

DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 n_threads() { return blockDim.x; }
DEVICE u32 block_x() { return blockIdx.x; }
DEVICE u32 block_y() { return blockIdx.y; }
DEVICE u32 block_z() { return blockIdx.z; }
DEVICE u32 n_blocks_x() { return gridDim.x; }
DEVICE u32 n_blocks_y() { return gridDim.y; }

// --- Memory. Pointers say where they point, so that accesses need not find out.

template <class T>
struct Global {
    T* at;
    __device__ __forceinline__ T& operator[](i64 i) const {
        T* p = at + i;
        __builtin_assume(__isGlobal(p));
        return *p;
    }
    __device__ __forceinline__ Global operator+(i64 n) const { return {at + n}; }
    template <class U>
    __device__ __forceinline__ operator Global<U>() const {
        return {at};
    }
    __device__ __forceinline__ explicit operator bool() const { return at != nullptr; }
};
template <class T>
struct Shared {
    T* at;
    __device__ __forceinline__ T& operator[](i64 i) const {
        T* p = at + i;
        __builtin_assume(__isShared(p));
        return *p;
    }
    __device__ __forceinline__ Shared operator+(i64 n) const { return {at + n}; }
    template <class U>
    __device__ __forceinline__ operator Shared<U>() const {
        return {at};
    }
};

template <class U, class T>
DEVICE Global<U> cast(Global<T> p) {
    return {reinterpret_cast<U*>(p.at)};
}
template <class U, class T>
DEVICE Shared<U> cast(Shared<T> p) {
    return {reinterpret_cast<U*>(p.at)};
}
template <class T>
DEVICE Global<T> global_at(u64 address) {
    return {reinterpret_cast<T*>(address)};
}

#define SHARED(type, name, count) \
    __shared__ alignas(16) type name##_memory[count]; \
    const Shared<type> name { name##_memory }
template <class T>
DEVICE Shared<T> dynamic_shared(u32 byte_offset) {
    extern __shared__ __align__(128) u8 dynamic_memory[];
    return {reinterpret_cast<T*>(dynamic_memory + byte_offset)};
}

// A whole vector; `p` is aligned to its size.
template <class V, class T>
DEVICE V load_as(Global<T> p) {
    return *cast<const V>(p).at;
}
template <class V, class T>
DEVICE V load_as(Shared<T> p) {
    auto q = cast<const V>(p);
    __builtin_assume(__isShared(q.at));
    return *q.at;
}
template <class V, class T>
DEVICE void store_as(Global<T> p, const V& value) {
    *reinterpret_cast<V*>(p.at) = value;
}
template <class V, class T>
DEVICE void store_as(Shared<T> p, const V& value) {
    __builtin_assume(__isShared(p.at));
    *reinterpret_cast<V*>(p.at) = value;
}
// 16 bytes that are read once in a launch and never written in it: past L1, two lines of L2 at once.
template <class T>
DEVICE U32x4 load_stream(Global<const T> p) {
    U32x4 r;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "l"(p.at));
    return r;
}
template <class T>
DEVICE void prefetch(Global<const T> p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.at));
}
template <class T>
DEVICE u32 shared_address(Shared<T> p) {
    return u32(__cvta_generic_to_shared(p.at));
}
// 16 bytes, or 16 zeros; they are there once the group that they are committed with was awaited, for other threads behind
// a barrier after that.
template <class T, class U>
DEVICE void copy_async(Shared<T> to, Global<const U> from, bool is_there = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from.at), "r"(is_there ? 16 : 0)
                 : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
DEVICE void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
DEVICE u32 atomic_add(Global<u32> p, u32 value) { return atomicAdd(p.at, value); }
DEVICE u32 atomic_add(Shared<u32> p, u32 value) { return atomicAdd(p.at, value); }
DEVICE u64 atomic_add(Shared<u64> p, u64 value) { return atomicAdd(p.at, value); }
DEVICE u32 atomic_or(Global<u32> p, u32 value) { return atomicOr(p.at, value); }
DEVICE u64 atomic_max(Global<u64> p, u64 value) { return atomicMax(p.at, value); }

// --- Threads that meet.

DEVICE void barrier() { __syncthreads(); }
DEVICE void warp_barrier(u32 mask = kAllLanes) { __syncwarp(mask); }
// What the launch before this one writes is there (of launches that may begin before the end of the one before).
DEVICE void await_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void release_successor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
template <class T>
DEVICE T shuffle(T value, u32 from, u32 mask = kAllLanes) {
    return __shfl_sync(mask, value, from);
}
template <class T>
DEVICE T shuffle_xor(T value, u32 flip, u32 mask = kAllLanes) {
    return __shfl_xor_sync(mask, value, flip);
}
template <class T>
DEVICE T shuffle_up(T value, u32 by, u32 mask = kAllLanes) {
    return __shfl_up_sync(mask, value, by);
}
DEVICE u32 vote(bool value, u32 mask = kAllLanes) { return __ballot_sync(mask, value); }

// --- Bits. Shifts by 32 and more shift everything out.

DEVICE u32 shift_left(u32 a, u32 n) {
    u32 r;
    asm("shl.b32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(n));
    return r;
}
DEVICE u32 shift_right(u32 a, u32 n) {
    u32 r;
    asm("shr.b32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(n));
    return r;
}
DEVICE u32 bits_of(f32 x) { return __float_as_uint(x); }
DEVICE f32 float_of(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
DEVICE u32 count_bits(u32 a) { return __popc(a); }
DEVICE i32 leading_zeros(u64 a) { return __clzll(i64(a)); }  // of 0: 64
DEVICE u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }
// Four signed products.
DEVICE i32 dot4(u32 a, u32 b, i32 c) { return __dp4a(i32(a), i32(b), c); }
// `a` unsigned.
DEVICE i32 dot4_unsigned(u32 a, u32 b, i32 c) {
    i32 r;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// --- Numbers. What isn't called approximate is rounded right (-fmad=false: sums and products are fused where they say so).

DEVICE f32 fused(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
DEVICE f32 least(f32 a, f32 b) { return fminf(a, b); }  // of a NaN and a number, the number
DEVICE f32 most(f32 a, f32 b) { return fmaxf(a, b); }
DEVICE f32 magnitude(f32 x) { return fabsf(x); }
DEVICE f32 round_even(f32 x) { return rintf(x); }
DEVICE i32 to_int_even(f32 x) { return __float2int_rn(x); }
DEVICE f64 log_f64(f64 x) { return log(x); }
DEVICE f64 exp_f64(f64 x) { return exp(x); }
DEVICE f32 square_root(f32 x) { return __fsqrt_rn(x); }
DEVICE f32 error_function(f32 x) { return erff(x); }
DEVICE f32 quotient(f32 a, f32 b) { return __fdiv_rn(a, b); }
DEVICE f32 exp2_approx(f32 x) {
    f32 r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEVICE f32 log2_approx(f32 x) {
    f32 r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEVICE f32 reciprocal_approx(f32 x) {
    f32 r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEVICE f32 root_reciprocal_approx(f32 x) {
    f32 r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

DEVICE f32 to_float(bf16 x) { return float_of(u32(x.bits) << 16); }
DEVICE bf16 to_bf16(f32 x) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
    return r;
}
DEVICE f32 to_float(f16 x) {
    f32 r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
    return r;
}
DEVICE f16 to_f16(f32 x) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
    return r;
}
// Cards before sm_89 have no such conversions: through the bits of f16, whose exponent is as wide or wider.
DEVICE f32 to_float(e4m3 x) {
#if __CUDA_ARCH__ >= 890
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(u16(x.bits)));
    return to_float(f16{u16(pair)});
#else
    if ((x.bits & 127) == 127) return float_of(0x7FFFFFFF);
    return to_float(f16{u16((x.bits & 128) << 8 | (x.bits & 127) << 7)}) * 256.0f;
#endif
}
DEVICE e4m3 to_e4m3(f32 x) {
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return {u8(pair)};
#else
    u32 bits = bits_of(x), sign = bits >> 24 & 128;
    f32 size = fabsf(x);
    if (!(size < 464.0f)) return {u8(size != size ? 0x7F : sign | 0x7E)};
    if (size < 0.015625f) return {u8(sign | u32(__float2int_rn(size * 512.0f)))};
    bits = bits_of(size) - (120u << 23);
    bits = (bits + 0x7FFFF + (bits >> 20 & 1)) >> 20;
    return {u8(sign | (bits > 0x7E ? 0x7E : bits))};
#endif
}

// --- Tensor cores; fragments as emulation/device.h spells them out.

template <class T>
DEVICE U32x4 ldmatrix(Shared<T> row) {
    U32x4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "r"(shared_address(row))
                 : "memory");
    return r;
}
template <class T>
DEVICE U32x4 ldmatrix_transposed(Shared<T> row) {
    U32x4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "r"(shared_address(row))
                 : "memory");
    return r;
}
DEVICE void mma_bf16(f32 (&d)[4], const U32x4& a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1));
}
#endif

DEVICE f32 infinity() { return float_of(0x7F800000u); }
DEVICE u32 lane_index() { return thread_index() % 32; }
DEVICE u32 warp_index() { return thread_index() / 32; }
DEVICE f32 low_bf16(u32 pair) { return float_of(pair << 16); }
DEVICE f32 high_bf16(u32 pair) { return float_of(pair & 0xFFFF0000u); }
DEVICE u32 pack_bf16(f32 low, f32 high) { return u32(to_bf16(low).bits) | u32(to_bf16(high).bits) << 16; }

DEVICE f32 warp_sum(f32 x) {
    UNROLL for (u32 flip = 16; flip; flip /= 2) x += shuffle_xor(x, flip);
    return x;
}
DEVICE f32 warp_most(f32 x) {
    UNROLL for (u32 flip = 16; flip; flip /= 2) x = most(x, shuffle_xor(x, flip));
    return x;
}
