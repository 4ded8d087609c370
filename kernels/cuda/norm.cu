// RMS norm and layer norm of rows, alone or behind a residual addition. One block for a row.
#include "blocks.h"

struct Norm {
    Global<const f32> weight, bias;  // null = ones, zeros
    f32 eps;
    bool centred;
};

// `x` may be `out`: each thread touches its own elements only.
DEVICE void normalise(Global<const f32> x, const Norm& norm, Global<f32> out, i32 size, f32 sum, f32 squares, Shared<f32> partial) {
    i32 begin = i32(thread_index()), step = i32(n_threads());
    f32 mean = 0.0f;
    if (norm.centred) {
        mean = quotient(block_sum(sum, partial), f32(size));
        squares = 0.0f;
        for (i32 i = begin; i < size; i += step) {
            f32 y = x[i] - mean;
            squares = fused(y, y, squares);
        }
    }
    f32 scale = quotient(1.0f, square_root(quotient(block_sum(squares, partial), f32(size)) + norm.eps));
    for (i32 i = begin; i < size; i += step) {
        f32 y = (x[i] - mean) * scale;
        if (norm.weight) y *= norm.weight[i];
        if (norm.bias) y += norm.bias[i];
        out[i] = y;
    }
}

// stream += delta * scale, out = norm(stream); rows of `size` floats. delta null: nothing is added.
KERNEL(1024) add_norm(Global<f32> stream, Global<const f32> delta, f32 scale, Global<const f32> weight, Global<const f32> bias, f32 eps, i32 centred, Global<f32> out, i32 size) {
    SHARED(f32, partial, 32);
    i64 row = i64(block_x()) * size;
    f32 sum = 0.0f, squares = 0.0f;
    for (i32 i = i32(thread_index()); i < size; i += i32(n_threads())) {
        f32 y = stream[row + i];
        if (delta) {
            y += delta[row + i] * scale;
            stream[row + i] = y;
        }
        sum += y;
        squares = fused(y, y, squares);
    }
    normalise(stream + row, {weight, bias, eps, centred != 0}, out + row, size, sum, squares, partial);
}
EXPORT(add_norm);

KERNEL(1024) norm_rows(Global<const f32> x, i64 x_stride, Global<const f32> weight, Global<const f32> bias, f32 eps, i32 centred, Global<f32> out, i64 out_stride, i32 size) {
    SHARED(f32, partial, 32);
    auto row = x + i64(block_x()) * x_stride;
    f32 sum = 0.0f, squares = 0.0f;
    for (i32 i = i32(thread_index()); i < size; i += i32(n_threads())) {
        f32 y = row[i];
        sum += y;
        squares = fused(y, y, squares);
    }
    normalise(row, {weight, bias, eps, centred != 0}, out + i64(block_x()) * out_stride, size, sum, squares, partial);
}
EXPORT(norm_rows);
