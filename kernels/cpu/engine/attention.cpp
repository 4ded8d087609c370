#include "attention.h"

#include <limits>
#include <type_traits>

namespace imp {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Tile {
    alignas(64) float p[kVectors][kTile];
    float m[kVectors], l[kVectors];
    int first_block, n_positions;  // that some query may see, the last one's end
};

// Blocks of keys, or vectors of values, that N queries meet at once: enough sums in flight to keep the multipliers busy,
// few enough to stay in registers; and a query's number, once loaded, serves all of them.
#if IMP_LANES_512
template <int N> constexpr int kTogether = N <= 5 ? 4 : 2;
#else
template <int N> constexpr int kTogether = N <= 2 ? 4 : N <= 4 ? 2 : 1;
#endif

template <KvKind Kind> IMP_INLINE void load_two(const uint8_t* at, int stride, Floats& first, Floats& second) {
    if constexpr (Kind == KvKind::bf16) {
        load_pairs((const uint16_t*)at, first, second);
    } else {
        first = load_int8((const int8_t*)at);
        second = load_int8((const int8_t*)at + stride);
    }
}

// The blocks of a tile, and of the one after it: each of its lines is prefetched where this tile's like is read, since
// blocks lie far apart and the hardware can't know the next one. The last tile's `next` is itself.
struct TileBlocks {
    const uint8_t* now[kTile / kKvBlock];
    const uint8_t* next[kTile / kKvBlock];
};

IMP_INLINE TileBlocks tile_blocks(const KvView& kv, int start, int end) {
    TileBlocks blocks;
    const int last = (end - 1) / kKvBlock;
    for (int b = 0; b < kTile / kKvBlock; ++b) {
        const int now = start / kKvBlock + b, next = now + kTile / kKvBlock;
        blocks.now[b] = kv.block(now < last ? now : last);
        blocks.next[b] = next <= last ? kv.block(next) : blocks.now[b];
    }
    return blocks;
}

// Raw dots of N queries with the keys of B blocks, to p[v][16 b ..].
template <KvKind Kind, int N, int B>
IMP_INLINE void key_dots(const TileBlocks& blocks, const Queries& queries, const KvForm& form, int first_block, Tile& tile) {
    constexpr int kTwoDims = Kind == KvKind::bf16 ? 64 : 32;
    Floats acc[B][N];
    for (int b = 0; b < B; ++b)
        for (int v = 0; v < N; ++v) acc[b][v] = zeros();
    for (int d = 0; d < form.head_size; d += 2) {
        Floats even[B], odd[B];
        IMP_UNROLL
        for (int b = 0; b < B; ++b) {
            load_two<Kind>(blocks.now[first_block + b] + form.keys + d / 2 * kTwoDims, 16, even[b], odd[b]);
            prefetch(blocks.next[first_block + b] + form.keys + d / 2 * kTwoDims);
        }
        IMP_UNROLL
        for (int v = 0; v < N; ++v) {
            const Floats q = splat(queries.q[v][d]), r = splat(queries.q[v][d + 1]);
            IMP_UNROLL
            for (int b = 0; b < B; ++b) acc[b][v] = fused(r, odd[b], fused(q, even[b], acc[b][v]));
        }
    }
    for (int b = 0; b < B; ++b)
        for (int v = 0; v < N; ++v) store(tile.p[v] + 16 * (first_block + b), acc[b][v]);
}

// The dots of N queries with 2 P positions of a block's latents, for one of their parts.
template <KvKind Kind, int N, int P>
IMP_INLINE void part_dots(const uint8_t* now, const uint8_t* next, int size, int slot, const Queries& queries, int from, Floats (&acc)[P][2][N]) {
    for (int d = 0; d < size; d += 16) {
        Floats even[P], odd[P];
        IMP_UNROLL
        for (int p = 0; p < P; ++p) {
            const int at = slot + 2 * p, offset = Kind == KvKind::bf16 ? at * size * 2 + d * 4 : at * size + d;
            load_two<Kind>(now + offset, size, even[p], odd[p]);
            prefetch(next + offset);
        }
        IMP_UNROLL
        for (int v = 0; v < N; ++v) {
            const Floats q = load(queries.q[v] + from + d);
            IMP_UNROLL
            for (int p = 0; p < P; ++p) {
                acc[p][0][v] = fused(q, even[p], acc[p][0][v]);
                acc[p][1][v] = fused(q, odd[p], acc[p][1][v]);
            }
        }
    }
}

// Dots of N queries with a block of latents, to p[v][16 block ..].
template <KvKind Kind, int N>
IMP_INLINE void latent_dots(const TileBlocks& blocks, const Queries& queries, const KvForm& form, int block, Tile& tile) {
    constexpr int P = N <= 3 ? 4 : N <= 6 ? 2 : 1;
    const uint8_t *now = blocks.now[block], *next = blocks.next[block];
    for (int slot = 0; slot < kKvBlock; slot += 2 * P) {
        Floats acc[P][2][N];
        const auto clear = [&] {
            for (int p = 0; p < P; ++p)
                for (int v = 0; v < N; ++v) acc[p][0][v] = acc[p][1][v] = zeros();
        };
        const auto each = [&](auto&& f) {
            for (int i = 0; i < 2 * P; ++i)
                for (int v = 0; v < N; ++v) f(tile.p[v][16 * block + slot + i], sum_lanes(acc[i / 2][i % 2][v]), slot + i);
        };
        clear();
        part_dots<Kind, N, P>(now + form.values, next + form.values, form.head_size, slot, queries, 0, acc);
        if constexpr (Kind == KvKind::int8) {
            const float *scales = (const float*)(now + form.value_scales), *turned_scales = (const float*)(now + form.turned_scales);
            each([&](float& score, float dot, int at) { score = dot * scales[at]; });
            clear();
            part_dots<Kind, N, P>(now + form.turned, next + form.turned, form.turned_size, slot, queries, form.head_size, acc);
            each([&](float& score, float dot, int at) { score = fused_scalar(dot, turned_scales[at], score); });
        } else {
            part_dots<Kind, N, P>(now + form.turned, next + form.turned, form.turned_size, slot, queries, form.head_size, acc);
            each([&](float& score, float dot, int) { score = dot; });
        }
    }
}

// Dots become scores, those of unseen positions -inf; the largest goes to tile.m.
template <KvKind Kind, int N>
IMP_INLINE void finish_scores(const KvView& kv, const TileBlocks& blocks, const AttentionRule& rule, const Queries& queries, int start, int n_blocks, Tile& tile) {
    for (int v = 0; v < N; ++v) {
        const int end = queries.positions[v] - start + 1, first = rule.first_seen(queries.positions[v]) - start;
        const bool all_seen = first <= 0 && end >= kKvBlock * n_blocks;
        Floats best = splat(kNothing);
        for (int b = 0; b < n_blocks; ++b) {
            Floats s = load(tile.p[v] + 16 * b);
            if (Kind == KvKind::int8 && !kv.form.turned_size) s = mul(s, load((const float*)(blocks.now[b] + kv.form.key_scales)));
            s = mul(s, splat(rule.scale));
            if (rule.softcap != 0.0f)
                s = mul(hyperbolic_tangent(mul(s, splat(1.0f / rule.softcap))), splat(rule.softcap));
            if (!all_seen) s = keep_range(s, first - 16 * b, end - 16 * b, kNothing);
            store(tile.p[v] + 16 * b, s);
            best = larger(best, s);
        }
        tile.m[v] = largest_lane(best);
    }
}

// Scores become weights, their sum goes to tile.l.
template <KvKind Kind, int N>
IMP_INLINE void weigh(const KvView& kv, const TileBlocks& blocks, int n_blocks, Tile& tile) {
    for (int v = 0; v < N; ++v) {
        // A query that sees nothing: all its scores are -inf, and so all its weights 0.
        const Floats m = splat(tile.m[v] == kNothing ? 0.0f : tile.m[v]);
        Floats sum = zeros();
        for (int b = 0; b < n_blocks; ++b) {
            Floats p = exponential_below_1(sub(load(tile.p[v] + 16 * b), m));
            sum = add(sum, p);
            if (Kind == KvKind::int8) p = mul(p, load((const float*)(blocks.now[b] + kv.form.value_scales)));
            store(tile.p[v] + 16 * b, p);
        }
        tile.l[v] = sum_lanes(sum);
    }
}

template <KvKind Kind, int N>
void tile_scores(const KvView& kv, const TileBlocks& blocks, const AttentionRule& rule, const Queries& queries, int start, Tile& tile) {
    const int n_blocks = (tile.n_positions + kKvBlock - 1) / kKvBlock;
    int b = 0;
    for (; kv.form.turned_size && b < n_blocks; ++b) latent_dots<Kind, N>(blocks, queries, kv.form, b, tile);
    for (; b + kTogether<N> <= n_blocks; b += kTogether<N>)
        key_dots<Kind, N, kTogether<N>>(blocks, queries, kv.form, b, tile);
    for (; b < n_blocks; ++b) key_dots<Kind, N, 1>(blocks, queries, kv.form, b, tile);
    // Two passes, not one query after another: that many chains of dependent steps run side by side.
    finish_scores<Kind, N>(kv, blocks, rule, queries, start, n_blocks, tile);
    weigh<Kind, N>(kv, blocks, n_blocks, tile);
}

// What a block holds beside the positions that are seen may be another row's, and no numbers: weights of 0 don't undo that.
// So blocks in front of all windows and the second position of a last pair are left out.
//
// o = fused(sum of p v, weight of the tile, o * weight of what was there), for D vectors of 16 dimensions.
template <KvKind Kind, int N, int D>
IMP_INLINE void value_sums(const KvView& kv, const TileBlocks& blocks, const Tile& tile, int dim, const float* keep, const float* take, Partial& out) {
    Floats acc[D][N];
    for (int j = 0; j < D; ++j)
        for (int v = 0; v < N; ++v) acc[j][v] = zeros();
    const int hd = kv.form.head_size;
    for (int t = tile.first_block * kKvBlock; t < tile.n_positions; t += kKvBlock) {
        const uint8_t *values = blocks.now[t / kKvBlock] + kv.form.values, *next = blocks.next[t / kKvBlock] + kv.form.values;
        const int count = tile.n_positions - t < kKvBlock ? tile.n_positions - t : kKvBlock;
        const auto pair = [&](int slot, auto is_alone) {
            Floats even[D], odd[D];
            IMP_UNROLL
            for (int j = 0; j < D; ++j) {
                const int at = dim + 16 * j, offset = Kind == KvKind::bf16 ? slot * hd * 2 + at * 4 : slot * hd + at;
                load_two<Kind>(values + offset, hd, even[j], odd[j]);
                prefetch(next + offset);
            }
            IMP_UNROLL
            for (int v = 0; v < N; ++v) {
                const Floats p = splat(tile.p[v][t + slot]), q = splat(is_alone ? 0.0f : tile.p[v][t + slot + 1]);
                IMP_UNROLL
                for (int j = 0; j < D; ++j) acc[j][v] = fused(q, is_alone ? zeros() : odd[j], fused(p, even[j], acc[j][v]));
            }
        };
        for (int slot = 0; slot + 1 < count; slot += 2) pair(slot, std::false_type());
        if (count % 2) pair(count - 1, std::true_type());
    }
    for (int j = 0; j < D; ++j)
        for (int v = 0; v < N; ++v) {
            float* o = out.o[v] + dim + 16 * j;
            if (tile.m[v] != kNothing) store(o, fused(acc[j][v], splat(take[v]), mul(load(o), splat(keep[v]))));
        }
}

// Weights of two partial sums with maxima a and b, vector by vector; the merged maximum goes to a.
IMP_INLINE void merge_weights(float* a, const float* b, int n, float* keep, float* take) {
    static_assert(kVectors <= 16, "a vector of weights");
    alignas(64) float of_a[16] = {}, of_b[16] = {};
    for (int v = 0; v < n; ++v) {
        const float m = a[v] > b[v] ? a[v] : b[v];
        of_a[v] = m == kNothing ? 0.0f : a[v] - m;
        of_b[v] = m == kNothing ? 0.0f : b[v] - m;
        a[v] = m;
    }
    store(keep, exponential_below_1(load(of_a)));
    store(take, exponential_below_1(load(of_b)));
}

template <KvKind Kind, int N>
void span_of(const KvView& kv, const AttentionRule& rule, const Queries& queries, int span, Partial& out) {
    int highest = 0, lowest = queries.positions[0];
    for (int v = 0; v < N; ++v) {
        highest = queries.positions[v] > highest ? queries.positions[v] : highest;
        lowest = queries.positions[v] < lowest ? queries.positions[v] : lowest;
        out.m[v] = kNothing;
        out.l[v] = 0.0f;
        for (int d = 0; d < kv.form.head_size; d += 16) store(out.o[v] + d, zeros());
    }
    int start = span * kSpan;
    if (rule.first_seen(lowest) > start) start = rule.first_seen(lowest) / kTile * kTile;
    const int end = highest + 1 < (span + 1) * kSpan ? highest + 1 : (span + 1) * kSpan;
    Tile tile;
    for (; start < end; start += kTile) {
        tile.n_positions = end - start < kTile ? end - start : kTile;
        const int unseen = rule.first_seen(lowest) - start;
        tile.first_block = unseen > 0 ? unseen / kKvBlock : 0;
        const TileBlocks blocks = tile_blocks(kv, start, end);
        tile_scores<Kind, N>(kv, blocks, rule, queries, start, tile);
        alignas(64) float keep[16], take[16];
        merge_weights(out.m, tile.m, N, keep, take);
        for (int v = 0; v < N; ++v) out.l[v] = fused_scalar(tile.l[v], take[v], out.l[v] * keep[v]);
        int dim = 0;
        for (; dim + 16 * kTogether<N> <= kv.form.head_size; dim += 16 * kTogether<N>)
            value_sums<Kind, N, kTogether<N>>(kv, blocks, tile, dim, keep, take, out);
        for (; dim < kv.form.head_size; dim += 16) value_sums<Kind, N, 1>(kv, blocks, tile, dim, keep, take, out);
    }
}

// The kernel for the number of queries that there are, among those for N and fewer.
template <KvKind Kind, int N = kVectors>
void span_by_count(const KvView& kv, const AttentionRule& rule, const Queries& queries, int span, Partial& out) {
    if (queries.n == N) return span_of<Kind, N>(kv, rule, queries, span, out);
    if constexpr (N > 1) span_by_count<Kind, N - 1>(kv, rule, queries, span, out);
}

}  // namespace

void attend_span(const KvView& kv, const AttentionRule& rule, const Queries& queries, int span, Partial& out) {
    if (kv.form.kind == KvKind::bf16) span_by_count<KvKind::bf16>(kv, rule, queries, span, out);
    else span_by_count<KvKind::int8>(kv, rule, queries, span, out);
}

void merge(Partial& into, const Partial& next, int n, int head_size) {
    alignas(64) float keep[16], take[16];
    merge_weights(into.m, next.m, n, keep, take);
    for (int v = 0; v < n; ++v) {
        if (next.m[v] == kNothing) continue;
        into.l[v] = fused_scalar(next.l[v], take[v], into.l[v] * keep[v]);
        for (int d = 0; d < head_size; d += 16)
            store(into.o[v] + d, fused(load(next.o[v] + d), splat(take[v]), mul(load(into.o[v] + d), splat(keep[v]))));
    }
}

void finish(Partial& partial, int v, int head_size, const float* sink, float* out) {
    float l = partial.l[v], keep = 1.0f;
    if (sink) {
        const float m = partial.m[v] > *sink ? partial.m[v] : *sink;
        keep = exponential_scalar(partial.m[v] - m);
        l = fused_scalar(l, keep, exponential_scalar(*sink - m));
    }
    const float scale = keep / l;
    for (int d = 0; d < head_size; d += 16) store(out + d, mul(load(partial.o[v] + d), splat(scale)));
}

namespace {

void write_bf16_values(uint8_t* at, int size, int slot, const float* from) {
    uint16_t* to = (uint16_t*)at + slot / 2 * size * 2 + slot % 2;
    for (int d = 0; d < size; ++d) to[2 * d] = float_to_bf16(from[d]);
}

// `step`: from one number to the next.
void write_int8(int8_t* to, int step, float* scale, int size, const float* from) {
    float amax = 0.0f;
    for (int d = 0; d < size; ++d) amax = std::fabs(from[d]) > amax ? std::fabs(from[d]) : amax;
    const float inverse = amax >= 1e-30f ? 127.0f / amax : 0.0f;
    for (int d = 0; d < size; ++d) to[d * step] = int8_t(std::nearbyintf(from[d] * inverse));
    *scale = amax >= 1e-30f ? amax / 127.0f : 0.0f;
}

}  // namespace

void write_kv(const KvForm& form, uint8_t* block, int slot, const float* key, const float* value) {
    const int size = form.head_size;
    if (form.kind == KvKind::bf16) {
        uint16_t* k = (uint16_t*)(block + form.keys);
        for (int d = 0; d < size; ++d) k[d / 2 * 32 + slot * 2 + d % 2] = float_to_bf16(key[d]);
        return write_bf16_values(block + form.values, size, slot, value);
    }
    write_int8((int8_t*)(block + form.keys) + slot, kKvBlock, (float*)(block + form.key_scales) + slot, size, key);
    write_int8((int8_t*)(block + form.values) + slot * size, 1, (float*)(block + form.value_scales) + slot, size, value);
}

void write_latent(const KvForm& form, uint8_t* block, int slot, const float* latent, const float* turned) {
    const int rank = form.head_size, size = form.turned_size;
    if (form.kind == KvKind::bf16) {
        write_bf16_values(block + form.values, rank, slot, latent);
        return write_bf16_values(block + form.turned, size, slot, turned);
    }
    write_int8((int8_t*)(block + form.values) + slot * rank, 1, (float*)(block + form.value_scales) + slot, rank, latent);
    write_int8((int8_t*)(block + form.turned) + slot * size, 1, (float*)(block + form.turned_scales) + slot, size, turned);
}

}  // namespace imp
