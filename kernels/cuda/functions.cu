// Single functions of device.h, applied to arrays: so they are compared with a card, lane by lane (analysis/device_table.py).
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

KERNEL(32) numbers(Global<const f32> a, Global<const f32> b, Global<const f32> c, Global<f32> sums, Global<f32> quotients, Global<f32> roots, Global<f32> errors, Global<f32> rounded, Global<u32> pairs, Global<f64> logarithms, Global<f64> exponentials) {
    u32 i = thread_index();
    sums[i] = fused(a[i], b[i], c[i]);
    quotients[i] = quotient(a[i], b[i]);
    roots[i] = square_root(magnitude(a[i]));
    errors[i] = error_function(a[i]);
    rounded[i] = round_even(4.0f * b[i]);
    u32 pair = pack_bf16(a[i], b[i]);
    pairs[i] = bits_of(low_bf16(pair)) ^ bits_of(high_bf16(pair)) >> 1;
    logarithms[i] = log_f64(f64(magnitude(a[i])) + 0.5);
    exponentials[i] = exp_f64(f64(c[i]));
}
EXPORT(numbers);

KERNEL(32) warps(Global<const u32> a, Global<const f32> x, Global<u32> from, Global<u32> flipped, Global<u32> up, Global<u32> votes, Global<u32> counts, Global<i32> zeros, Global<u32> products, Global<f32> sums, Global<f32> tops) {
    u32 i = thread_index();
    from[i] = shuffle(u32(a[i]), (7 * i + 3) % 32);
    flipped[i] = shuffle_xor(u32(a[i]), 5);
    up[i] = shuffle_up(u32(a[i]), 3);
    votes[i] = vote(a[i] % 3 == 0);
    counts[i] = count_bits(a[i]);
    zeros[i] = leading_zeros(u64(a[i]) << (i % 32) >> (i % 5 * 8));
    products[i] = high_product(a[i], a[31 - i]);
    sums[i] = warp_sum(f32(x[i]));
    tops[i] = warp_most(f32(x[i]));
}
EXPORT(warps);

// 16 bytes a lane through shared memory, every third lane's zeros instead; then numbers that many lanes change.
KERNEL(32) memory(Global<const u32> a, Global<u32> copied, Global<u32> streamed, Global<u32> added, Global<u32> ored, Global<u64> most_of) {
    SHARED(u32, kept, 128);
    u32 i = thread_index();
    copy_async(kept + 4 * i, a + 4 * i, i % 3 != 0);
    commit_copies();
    await_copies<0>();
    barrier();
    store_as(copied + 4 * i, load_as<U32x4>(kept + 4 * (31 - i)));
    store_as(streamed + 4 * i, load_stream(a + 4 * i));
    atomic_add(added + i % 4, a[i]);
    atomic_or(ored + i % 4, a[i] & 0x01010101u << i % 8);
    atomic_max(most_of + i % 4, u64(a[i]) << 8 | i);
}
EXPORT(memory);
