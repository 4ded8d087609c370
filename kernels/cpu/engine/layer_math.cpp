#include "layer_math.h"

namespace imp {
namespace {


float sum_of_squares(const float* x, int n, float mean) {
    Floats lanes = zeros();
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const Floats centred = sub(load(x + i), splat(mean));
        lanes = fused(centred, centred, lanes);
    }
    float sum = sum_lanes(lanes);
    for (; i < n; ++i) sum = fused_scalar(x[i] - mean, x[i] - mean, sum);
    return sum;
}

float sum_of(const float* x, int n) {
    Floats lanes = zeros();
    int i = 0;
    for (; i + 16 <= n; i += 16) lanes = add(lanes, load(x + i));
    float sum = sum_lanes(lanes);
    for (; i < n; ++i) sum += x[i];
    return sum;
}

}  // namespace

float mean_square(const float* x, int n) { return sum_of_squares(x, n, 0.0f) / float(n); }

float cutoff_of(const float* x, int n, float deviations) {
    const float mean = sum_of(x, n) / float(n);
    return mean + std::sqrt(sum_of_squares(x, n, mean) / float(n)) * deviations;
}

void normalise(NormKind kind, float eps, const Norm& norm, const float* x, int n, float* out) {
    if (!norm.weight) {
        if (out != x) std::memcpy(out, x, size_t(n) * sizeof(float));
        return;
    }
    const float mean = kind == NormKind::layer ? sum_of(x, n) / float(n) : 0.0f;
    const float scale = 1.0f / std::sqrt(sum_of_squares(x, n, mean) / float(n) + eps);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        Floats y = mul(mul(sub(load(x + i), splat(mean)), splat(scale)), load(norm.weight + i));
        if (norm.bias) y = add(y, load(norm.bias + i));
        store(out + i, y);
    }
    for (; i < n; ++i) out[i] = (x[i] - mean) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

void rotate(float* head, int dims, bool interleaved, const float* cosine_sine) {
    const int half = dims / 2;
    int done = 0;
    for (; !interleaved && done + 16 <= half; done += 16) {
        const Floats c = load(cosine_sine + done), s = load(cosine_sine + half + done);
        const Floats x = load(head + done), y = load(head + half + done);
        store(head + done, fused(x, c, mul(mul(y, splat(-1.0f)), s)));
        store(head + half + done, fused(y, c, mul(x, s)));
    }
    for (int i = done; i < half; ++i) {
        float& a = head[interleaved ? 2 * i : i];
        float& b = head[interleaved ? 2 * i + 1 : i + half];
        const float c = cosine_sine[i], s = cosine_sine[half + i], x = a, y = b;
        a = fused_scalar(x, c, -(y * s));
        b = fused_scalar(y, c, x * s);
    }
}

}  // namespace imp
