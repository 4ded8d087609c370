// Single functions of device.h, applied to arrays.
#include "device.h"

KERNEL(64) convert(Global<const f32> x, i32 n, Global<bf16> to_b, Global<f16> to_h, Global<e4m3> to_e, Global<f32> from_b, Global<f32> from_h, Global<f32> from_e, Global<i32> whole) {
    for (i32 i = i32(thread_index()); i < n; i += 64) {
        f32 value = x[i];
        bf16 b = to_bf16(value);
        f16 h = to_f16(value);
        e4m3 e = to_e4m3(value);
        to_b[i] = b;
        to_h[i] = h;
        to_e[i] = e;
        from_b[i] = to_float(b);
        from_h[i] = to_float(h);
        from_e[i] = to_float(e);
        whole[i] = to_int_even(value);
    }
}
EXPORT(convert);

KERNEL(64) approximate(Global<const f32> x, i32 n, Global<f32> exponentials, Global<f32> logarithms, Global<f32> reciprocals, Global<f32> roots) {
    for (i32 i = i32(thread_index()); i < n; i += 64) {
        exponentials[i] = exp2_approx(x[i]);
        logarithms[i] = log2_approx(magnitude(x[i]));
        reciprocals[i] = reciprocal_approx(x[i]);
        roots[i] = root_reciprocal_approx(magnitude(x[i]));
    }
}
EXPORT(approximate);

KERNEL(32) bits(Global<const u32> a, Global<const u32> b, Global<u32> left, Global<u32> right, Global<u32> bytes, Global<i32> dots, Global<i32> unsigned_dots) {
    u32 i = thread_index();
    left[i] = shift_left(a[i], i + 10);
    right[i] = shift_right(a[i], i + 10);
    bytes[i] = permute_bytes(a[i], b[i], i * 0x1357u);
    dots[i] = dot4(a[i], b[i], i32(i));
    unsigned_dots[i] = dot4_unsigned(a[i], b[i], -i32(i));
}
EXPORT(bits);

KERNEL(32) extremes(Global<const f32> a, Global<const f32> b, Global<f32> low, Global<f32> high) {
    u32 i = thread_index();
    low[i] = least(a[i], b[i]);
    high[i] = most(a[i], b[i]);
}
EXPORT(extremes);

// d [16, 8] = a [16, 16] b [16, 8] + d, through shared memory and ldmatrix; `b` as [8, 16] in one, as [16, 8] in the other.
KERNEL(32) product(Global<const bf16> a, Global<const bf16> b, Global<const bf16> b_columns, Global<f32> d, Global<f32> again) {
    SHARED(bf16, left, 16 * 24);
    SHARED(bf16, right, 16 * 24);
    u32 lane = lane_index(), g = lane / 4, t = lane % 4;
    for (u32 i = lane; i < 256; i += 32) left[i / 16 * 24 + i % 16] = a[i];
    for (u32 i = lane; i < 256; i += 32) right[i / 16 * 24 + i % 16] = i < 128 ? bf16(b_columns[i]) : bf16{0};
    warp_barrier();
    U32x4 rows = ldmatrix(left + (lane % 16 * 24 + lane / 16 * 8));
    U32x4 columns = ldmatrix(right + (lane % 8 * 24 + lane / 8 % 2 * 8));
    f32 sums[4], more[4];
    for (u32 i = 0; i < 4; i++) sums[i] = more[i] = d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2];
    mma_bf16(sums, rows, columns.v[0], columns.v[1]);
    warp_barrier();
    for (u32 i = lane; i < 128; i += 32) right[i / 8 * 24 + i % 8] = b[i];
    warp_barrier();
    U32x4 turned = ldmatrix_transposed(right + (lane % 16 * 24));
    mma_bf16(more, rows, turned.v[0], turned.v[1]);
    for (u32 i = 0; i < 4; i++) {
        u32 at = (g + 8 * (i / 2)) * 8 + 2 * t + i % 2;
        d[at] = sums[i];
        again[at] = more[i];
    }
}
EXPORT(product);
