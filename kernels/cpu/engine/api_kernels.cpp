// The C interface of single kernels, for tests: each is called as the forward calls it.
#include <cstring>
#include <vector>

#include "attention.h"
#include "error.h"
#include "layer_math.h"

using namespace imp;

extern "C" {

// out[n_rows, n] = norm(x). `bias` may be null.
void imp_cpu_normalise(int32_t kind, float eps, const float* weight, const float* bias, const float* x, int32_t n_rows, int32_t n,
                       float* out) {
    for (int64_t row = 0; row < n_rows; ++row) normalise(NormKind(kind), eps, Norm{weight, bias}, x + row * n, n, out + row * n);
}

// Rotates heads[n, size] in place; table[n, dims]: each one's cosines, then sines.
void imp_cpu_rotate(float* heads, int32_t n, int32_t size, int32_t dims, int32_t interleaved, const float* table) {
    for (int64_t i = 0; i < n; ++i) rotate(heads + i * size, dims, interleaved, table + i * dims);
}

// out[n] = activation of gate[n]; n a multiple of 16.
void imp_cpu_activate(int32_t kind, const float* gate, int32_t n, float* out) {
    for (int32_t i = 0; i < n; i += 16) store(out + i, activate(ActivationKind(kind), load(gate + i)));
}

// One KV head. queries[n, size] at positions[n], each over keys and values [n_positions, size], which are first written to a
// cache of this form whose blocks lie as `table` says; sinks[n] may be null; out[n, size].
Error imp_cpu_attend(const KvForm* form, const AttentionRule* rule, const float* queries, const int32_t* positions,
                     int32_t n, const float* keys, const float* values, int32_t n_positions, const int32_t* table,
                     const float* sinks, float* out) {
    return guarded([&] {
        const int size = form->head_size;
        const int64_t block_bytes = form->stride;
        const int n_blocks = (n_positions + kKvBlock - 1) / kKvBlock;
        std::vector<uint8_t> pool(size_t(block_bytes * n_blocks) + 64);
        uint8_t* aligned = pool.data() + (64 - (uintptr_t)pool.data() % 64) % 64;
        for (int64_t i = 0; i < n_positions; ++i)
            write_kv(*form, aligned + table[i / kKvBlock] * block_bytes, int(i % kKvBlock), keys + i * size, values + i * size);
        const KvView kv{aligned, block_bytes, table, *form};
        Queries group;
        Partial whole, next;
        for (int first = 0; first < n; first += group.n) {
            group.n = n - first < kVectors ? n - first : kVectors;
            for (int v = 0; v < group.n; ++v) {
                group.positions[v] = positions[first + v];
                std::memcpy(group.q[v], queries + int64_t(first + v) * size, size_t(size) * sizeof(float));
            }
            const int start = first_span(group, *rule), end = end_span(group);
            attend_span(kv, *rule, group, start, whole);
            for (int span = start + 1; span < end; ++span) {
                attend_span(kv, *rule, group, span, next);
                merge(whole, next, group.n, size);
            }
            for (int v = 0; v < group.n; ++v)
                finish(whole, v, size, sinks ? sinks + first + v : nullptr, out + int64_t(first + v) * size);
        }
        return Error::ok;
    });
}

}  // extern "C"
