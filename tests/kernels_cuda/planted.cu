// One fault of each kind, and beside it what is right. `y` has a float for each of 64 threads of a block.
#include "device.h"

KERNEL(64) right(Global<const f32> x, Global<f32> y) {
    SHARED(f32, turned, 64);
    u32 i = thread_index();
    turned[63 - i] = x[i];
    barrier();
    f32 sum = warp_sum(turned[i]);
    y[i] = sum + shuffle(f32(turned[i]), 3);
}
EXPORT(right);

KERNEL(64) out_of_bounds(Global<const f32> x, Global<f32> y) { y[thread_index()] = x[thread_index() + 1]; }
EXPORT(out_of_bounds);

KERNEL(64) into_the_next_buffer(Global<const f32> x, Global<f32> y) { y[i64(thread_index()) + (i64(x.at - y.at))] = 0.0f; }
EXPORT(into_the_next_buffer);

KERNEL(64) read_only(Global<f32> x, Global<f32> y) {
    x[thread_index()] = 1.0f;
    y[thread_index()] = 1.0f;
}
EXPORT(read_only);

KERNEL(64) missing_barrier(Global<const f32> x, Global<f32> y) {
    SHARED(f32, turned, 64);
    u32 i = thread_index();
    turned[63 - i] = x[i];
    y[i] = turned[i];
}
EXPORT(missing_barrier);

KERNEL(64) missing_second_barrier(Global<const f32> x, Global<f32> y) {
    SHARED(f32, turned, 64);
    u32 i = thread_index();
    f32 sum = 0.0f;
    for (u32 turn = 0; turn < 2; turn++) {
        turned[63 - i] = x[i];
        barrier();
        sum += turned[i];
    }
    y[i] = sum;
}
EXPORT(missing_second_barrier);

KERNEL(64) missing_warp_barrier(Global<const f32> x, Global<f32> y) {
    SHARED(f32, turned, 64);
    u32 i = thread_index();
    turned[i] = x[i];
    y[i] = turned[i ^ 1];
}
EXPORT(missing_warp_barrier);

KERNEL(64) warp_barrier_is_enough(Global<const f32> x, Global<f32> y) {
    SHARED(f32, turned, 64);
    u32 i = thread_index();
    turned[i] = x[i];
    warp_barrier();
    y[i] = turned[i ^ 1];
}
EXPORT(warp_barrier_is_enough);

KERNEL(64) unwritten_shared(Global<const f32> x, Global<f32> y) {
    SHARED(f32, some, 64);
    u32 i = thread_index();
    if (i < 63) some[i] = x[i];
    barrier();
    y[i] = some[i];
}
EXPORT(unwritten_shared);

KERNEL(64) divergent_barrier(Global<const f32> x, Global<f32> y) {
    if (thread_index() < 32) {
        barrier();
    } else {
        barrier();
    }
    y[thread_index()] = x[0];
}
EXPORT(divergent_barrier);

KERNEL(64) barrier_that_some_miss(Global<const f32> x, Global<f32> y) {
    y[thread_index()] = x[0];
    if (thread_index() < 60) barrier();
}
EXPORT(barrier_that_some_miss);

KERNEL(64) divergent_shuffle(Global<const f32> x, Global<f32> y) {
    u32 i = thread_index();
    f32 value = x[i];
    if (i % 32 < 16) value = shuffle(value, 1);
    y[i] = value;
}
EXPORT(divergent_shuffle);

KERNEL(64) parted_lanes(Global<const f32> x, Global<f32> y) {
    u32 i = thread_index();
    f32 value = x[i];
    if (i % 32 < 16) {
        value = shuffle(value, 1);
    } else {
        value += vote(value > 0.0f);
    }
    y[i] = value;
}
EXPORT(parted_lanes);

KERNEL(64) lane_outside_of_mask(Global<const f32> x, Global<f32> y) {
    u32 i = thread_index();
    y[i] = i % 32 < 16 ? shuffle(f32(x[i]), 20, 0xFFFF) : 0.0f;
}
EXPORT(lane_outside_of_mask);

KERNEL(64) misaligned(Global<const f32> x, Global<f32> y) {
    u32 i = thread_index();
    y[i] = i < 15 ? float_of(load_as<U32x4>(x + 1).v[0]) : 0.0f;
}
EXPORT(misaligned);

template <bool kWaits, bool kMeets>
DEVICE void copied(Global<const f32> x, Global<f32> y, Shared<f32> some) {
    u32 i = thread_index();
    if (i < 16) copy_async(some + 4 * i, x + 4 * i);
    commit_copies();
    if (kWaits) await_copies<0>();
    if (kMeets) barrier();
    y[i] = some[i];
}
KERNEL(64) missing_wait(Global<const f32> x, Global<f32> y) {
    SHARED(f32, some, 64);
    copied<false, true>(x, y, some);
}
EXPORT(missing_wait);
KERNEL(64) wait_without_barrier(Global<const f32> x, Global<f32> y) {
    SHARED(f32, some, 64);
    copied<true, false>(x, y, some);
}
EXPORT(wait_without_barrier);
KERNEL(64) awaited_copy(Global<const f32> x, Global<f32> y) {
    SHARED(f32, some, 64);
    copied<true, true>(x, y, some);
}
EXPORT(awaited_copy);

KERNEL(64) copy_over_what_is_read(Global<const f32> x, Global<f32> y) {
    SHARED(f32, some, 64);
    u32 i = thread_index();
    some[i] = x[i];
    barrier();
    y[i] = some[i];
    if (i < 16) copy_async(some + 4 * i, x + 4 * i);
    commit_copies();
    await_copies<0>();
}
EXPORT(copy_over_what_is_read);

KERNEL(64) too_much_shared(Global<const f32> x, Global<f32> y) {
    SHARED(f32, some, 25 * 1024);
    some[thread_index()] = x[0];
    y[thread_index()] = some[thread_index()];
}
EXPORT(too_much_shared);

KERNEL(64) unset_scalar(Global<const f32> x, Global<f32> y) {
    f32 value;
    if (x[thread_index()] > 1e30f) value = 1.0f;
    y[thread_index()] = value;
}
EXPORT(unset_scalar);

KERNEL(64) unset_register(Global<const f32> x, Global<f32> y) {
    f32 some[8];
    u32 i = thread_index() % 8;
    if (i != 3) some[i] = x[i];
    y[thread_index()] = some[i ^ (x[0] > -1e30f ? 0 : 1)];
}
EXPORT(unset_register);

KERNEL(64) blocks_that_meet(Global<const f32> x, Global<f32> y) { y[thread_index()] = x[0] + f32(block_x()); }
EXPORT(blocks_that_meet);

KERNEL(64) blocks_that_add(Global<const f32> x, Global<u32> y) { atomic_add(y + thread_index(), u32(x[0] > 0.0f)); }
EXPORT(blocks_that_add);

KERNEL(64) doubled(Global<const f32> x, Global<f32> y) { y[thread_index()] = 2.0f * x[thread_index()]; }
EXPORT(doubled);
KERNEL(64) dependent(Global<const f32> x, Global<f32> y) {
    await_predecessor();
    y[thread_index()] = x[thread_index()] + 1.0f;
}
EXPORT(dependent);
KERNEL(64) dependent_without_wait(Global<const f32> x, Global<f32> y) { y[thread_index()] = x[thread_index()] + 1.0f; }
EXPORT(dependent_without_wait);
