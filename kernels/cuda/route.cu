// Which experts a token takes, and how much of each. One warp for a token; its scores lie in shared memory.
#include "blocks.h"

constexpr i32 kMost = 512;  // experts

struct Best {
    f32 value;
    i32 id;
};

// The largest of `n` numbers, of equal ones the first: the same for all lanes.
DEVICE Best best_of(Shared<const f32> x, i32 n) {
    Best best{-infinity(), n};
    for (i32 i = i32(lane_index()); i < n; i += 32) {
        f32 value = x[i];
        if (value == value && (value > best.value || best.id == n)) best = {value, i};
    }
    UNROLL for (u32 flip = 16; flip; flip /= 2) {
        Best other{shuffle_xor(best.value, flip), shuffle_xor(best.id, flip)};
        bool is_better = other.id < n && (best.id == n || other.value > best.value || (other.value == best.value && other.id < best.id));
        best = is_better ? other : best;
    }
    return best;
}

// Groups that aren't among the `n_open` strongest lose their experts.
DEVICE void close_groups(Shared<f32> choice, Shared<f32> strength, i32 count, i32 n_groups, i32 n_open, bool two) {
    i32 size = count / n_groups;
    for (i32 g = i32(lane_index()); g < n_groups; g += 32) {
        f32 first = -infinity(), second = -infinity();
        for (i32 i = 0; i < size; i++) {
            f32 value = choice[g * size + i];
            second = most(second, least(first, value));
            first = most(first, value);
        }
        strength[g] = two && size > 1 ? first + second : first;
    }
    warp_barrier();
    u64 open = 0;
    for (i32 n = 0; n < n_open; n++) {
        Best best = best_of(strength, n_groups);
        if (best.id == n_groups) break;
        open |= u64(1) << best.id;
        warp_barrier();
        if (lane_index() == 0) strength[best.id] = -infinity();
        warp_barrier();
    }
    for (i32 i = i32(lane_index()); i < count; i += 32)
        if (!(open >> i / size & 1)) choice[i] = -infinity();
    warp_barrier();
}

// logits [T, count] -> chosen, weights [T, top_k]; grid T. gating: 0 softmax, 1 sigmoid.
KERNEL(32) route(Global<const f32> logits, i32 count, i32 top_k, i32 gating, i32 normalise, f32 scale, Global<const f32> selection_bias, Global<const f32> expert_scale, i32 n_groups, i32 top_groups, i32 best_two, Global<i32> chosen,
                 Global<f32> weights) {
    SHARED(f32, scores, kMost);
    SHARED(f32, choice, kMost);
    SHARED(f32, strength, 64);
    i64 token = block_x();
    i32 lane = i32(lane_index());
    f32 top = -infinity(), sum = 0.0f;
    for (i32 i = lane; i < count; i += 32) top = most(top, f32(logits[token * count + i]));
    top = warp_most(top);
    for (i32 i = lane; i < count; i += 32) {
        f32 x = logits[token * count + i], score = gating == 0 ? exponential(x - top) : sigmoid(x);
        scores[i] = score;
        sum += score;
    }
    sum = warp_sum(sum);
    // Scores go with the logits, but two of them may round to one.
    bool by_score = selection_bias || n_groups > 1;
    for (i32 i = lane; i < count; i += 32) {
        if (gating == 0) scores[i] = quotient(scores[i], sum);
        f32 key = by_score ? f32(scores[i]) : f32(logits[token * count + i]);
        choice[i] = selection_bias ? key + selection_bias[i] : key;
    }
    warp_barrier();
    if (n_groups > 1) close_groups(choice, strength, count, n_groups, top_groups, best_two != 0);
    f32 total = 0.0f;
    for (i32 place = 0; place < top_k; place++) {
        Best best = best_of(choice, count);
        if (best.id == count) best.id = 0;  // nothing but NaNs is left
        total += scores[best.id];
        warp_barrier();
        if (lane == 0) {
            // Never again: below what closed groups have.
            choice[best.id] = float_of(0xFFC00000u);
            chosen[token * top_k + place] = best.id;
        }
        warp_barrier();
    }
    if (total < 1e-20f) total = 1e-20f;
    if (lane == 0) {
        for (i32 place = 0; place < top_k; place++) {
            i32 id = chosen[token * top_k + place];
            f32 weight = normalise ? quotient(scores[id], total) : f32(scores[id]);
            weight *= scale;
            weights[token * top_k + place] = expert_scale ? weight * expert_scale[id] : weight;
        }
    }
}
EXPORT(route);
