// What this machine can do at best, beside which a forward's speed is judged: reading memory, dot products on registers, a
// layout's inner loop on numbers that never leave the first-level cache.
#include <vector>

#include "error.h"
#include "scratch.h"
#include "tiles.h"

using namespace imp;

namespace {

constexpr int kDots = IMP_LANES_512 ? 12 : 6;  // independent sums: enough to hide the latency, few enough to stay in registers

// Streams that are read side by side, and how far ahead of each is prefetched (0: left to the hardware).
struct ReadLoop {
    int n_streams, ahead;
};
constexpr ReadLoop kReadLoops[] = {{1, 0}, {1, 2048}, {1, 4096}, {1, 8192}, {2, 4096}, {4, 0}, {4, 2048}};

template <int N> int32_t read_streams(const uint8_t* bytes, int64_t n, int ahead) {
    const int64_t part = n / N / 64 * 64;
    Ints sums[4] = {int_zeros(), int_zeros(), int_zeros(), int_zeros()};
    for (int64_t at = 0; at + 256 / N <= part; at += 256 / N)
        for (int i = 0; i < 4; ++i) {
            const uint8_t* line = bytes + (i % N) * part + at + i / N * 64;
            if (ahead) prefetch(line + ahead);
            sums[i] = dot4<false>(sums[i], load_bytes(line), 0x01010101);
        }
    float lanes[16];
    float sum = 0.0f;
    for (const Ints& s : sums) {
        store(lanes, to_floats(s));
        for (const float lane : lanes) sum += lane;
    }
    return int32_t(int64_t(sum) & 0x7fffffff);
}

}  // namespace

extern "C" {

int32_t imp_cpu_n_read_loops() { return int32_t(sizeof kReadLoops / sizeof kReadLoops[0]); }

// Reads n bytes at a multiple of 64 once, in one of the ways there are. The result depends on each of them.
int32_t imp_cpu_read_loop(int32_t loop, const uint8_t* bytes, int64_t n) {
    const ReadLoop how = kReadLoops[loop];
    if (how.n_streams == 1) return read_streams<1>(bytes, n, how.ahead);
    if (how.n_streams == 2) return read_streams<2>(bytes, n, how.ahead);
    return read_streams<4>(bytes, n, how.ahead);
}

// Dot products of registers alone; the number of multiplications done.
int64_t imp_cpu_dot_registers(int64_t n_rounds, int32_t* result) {
    Ints sums[kDots];
    alignas(64) uint8_t bytes[64];
    for (int i = 0; i < 64; ++i) bytes[i] = uint8_t(*result + i) & 127;
    const Bytes w = load_bytes(bytes);
    for (Ints& s : sums) s = int_zeros();
    for (int64_t round = 0; round < n_rounds; ++round) {
        IMP_UNROLL
        for (int i = 0; i < kDots; ++i) sums[i] = dot4<false>(sums[i], w, 0x01020304);
    }
    float lanes[16], total = 0.0f;
    for (const Ints& s : sums) {
        store(lanes, to_floats(s));
        for (const float lane : lanes) total += lane;
    }
    *result = total > 0.0f;
    return n_rounds * kDots * 64;
}

// The product of up to 8 rows with the first two panels of a matrix, again and again; 8 as a prefill has them, among many.
Error imp_cpu_repeat(const Matrix* matrix, const float* x, int32_t n_rows, int64_t n_times) {
    return guarded([&] {
        Activations a;
        Buffer<uint8_t> bytes;
        Buffer<float> floats;
        a.n_rows = n_rows;
        a.n_blocks = matrix->n_blocks;
        if (is_float(matrix->id())) a.floats = floats.get(int64_t(n_rows) * a.n_blocks * kBlock);
        else a.quantised = bytes.get(int64_t(n_rows) * a.n_blocks * kActivationBytes);
        put_group(a, 0, x, matrix->n_in, matrix->n_in);
        if (n_rows == kGroupRows) a.n_rows = 2 * kGroupRows;  // of which the first group alone is there and looked at
        alignas(64) float tile[kGroupRows * kUnitColumns];
        for (int64_t i = 0; i < n_times; ++i) multiply_unit(*matrix, a, 0, 0, tile);
        return Error::ok;
    });
}

}  // extern "C"
