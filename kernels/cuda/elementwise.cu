// What touches each number by itself. Grid (pieces of a row, rows).
#include "activations.h"

// x[row] += delta[row] * scale, times the sigmoid of opened[row] if that is given.
KERNEL(256) add_rows(Global<f32> x, i64 x_stride, Global<const f32> delta, i64 delta_stride, f32 scale, Global<const f32> opened, i64 opened_stride, i32 n) {
    i32 i = i32(block_x() * n_threads() + thread_index());
    i64 row = block_y();
    if (i >= n) return;
    f32 d = delta[row * delta_stride + i];
    if (opened) d *= sigmoid(opened[row * opened_stride]);
    x[row * x_stride + i] = x[row * x_stride + i] + d * scale;
}
EXPORT(add_rows);

KERNEL(256) activate(Global<const f32> x, i64 x_stride, Global<const f32> times, i64 times_stride, i32 kind, Global<f32> out, i64 out_stride, i32 n) {
    i32 i = i32(block_x() * n_threads() + thread_index());
    i64 row = block_y();
    if (i >= n) return;
    f32 value = x[row * x_stride + i];
    out[row * out_stride + i] = times ? activated(kind, value, times[row * times_stride + i]) : activated(kind, value, 1.0f);
}
EXPORT(activate);
