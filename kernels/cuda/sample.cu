// The sampling law (decode/processors.py, sampling.py, verify.py) for R rows of D positions; position j of row r is r D + j.
//
//   count_ids   how often ids stand in the window of a row's penalties    add_biases   biases, bans
//   process     penalties and mask; the best key of each position         truncate     the least key that may be drawn
//   draw        logit / temperature + noise of what may be drawn          pick         the sampled ids
//   walk        drafts that were what was sampled, and what the slots keep
//
// Keys (order_key) are in the order of the law. Masses are whole numbers, so sums don't depend on their order.
#include "noise.h"

enum Ints { kPositions, kMaskFirst, kHistory, kPrompt, kRepeatLastN, kTopK, kSeedLow, kSeedHigh, kChoice, kPosition, kCounts, kInts };
enum Floats { kTemperature, kTopP, kMinP, kRepetition, kPresence, kFrequency, kFloats };

constexpr u64 kFirstFinite = u64(0x00800000u) << 32;  // keys of -inf lie below
constexpr u32 kSeen = 0x80000000u;
constexpr int kBins = 2048;

DEVICE f32 logit_of_key(u64 key) {
    u32 rising = u32(key >> 32);
    return float_of(rising >> 31 ? rising & 0x7FFFFFFFu : ~rising);
}

KERNEL(256) clear(Global<u32> words, i64 n) {
    for (i64 i = i64(block_x()) * n_threads() + thread_index(); i < n; i += i64(n_blocks_x()) * n_threads()) words[i] = 0;
}
EXPORT(clear);

// counts [R D, vocab]: kSeen if the id stands in the window, and how often behind the prompt. Grid (pieces, R D).
KERNEL(256) count_ids(Global<const i32> ints, Global<const i32> slots, Global<const i32> histories, i32 capacity, i32 n_read, Global<const i32> drafts, i32 width, i32 vocab, Global<u32> counts) {
    i32 at = i32(block_x() * n_threads() + thread_index()), row = i32(block_y()) / width, j = i32(block_y()) % width;
    auto own = ints + i64(row) * kInts;
    if (!own[kCounts] || j >= own[kPositions] || at >= n_read + width - 1) return;
    i32 n_known = own[kHistory], last = own[kRepeatLastN], end = n_known + j;
    if (at < n_read && at >= n_known) return;
    i32 place = at < n_read ? at : n_known + at - n_read, start = last > 0 && end > last ? end - last : 0;
    if (place < start || place >= end) return;
    i32 id = at < n_read ? histories[i64(i32(slots[row])) * capacity + at] : drafts[row * (width - 1) + at - n_read];
    id = id < 0 ? 0 : id < vocab ? id : vocab - 1;
    auto count = counts + (i64(block_y()) * vocab + id);
    atomic_or(count, kSeen);
    if (place >= own[kPrompt]) atomic_add(count, 1u);
}
EXPORT(count_ids);

// Ids come once in a row, but for bans, which are -inf. Grid R D.
KERNEL(64) add_biases(Global<f32> logits, i32 vocab, i32 width, Global<const i32> ids, Global<const f32> biases, i32 n) {
    i64 row = block_x() / width;
    auto own = logits + i64(block_x()) * vocab;
    for (i32 i = i32(thread_index()); i < n; i += 64) {
        i32 id = ids[row * n + i];
        f32 bias = biases[row * n + i];
        if (id >= 0 && bias != -infinity()) own[id] = own[id] + bias;
    }
    barrier();
    for (i32 i = i32(thread_index()); i < n; i += 64) {
        i32 id = ids[row * n + i];
        bool is_first = true;
        for (i32 k = 0; k < i; k++) is_first &= ids[row * n + k] != id || biases[row * n + k] != -infinity();
        if (id >= 0 && biases[row * n + i] == -infinity() && is_first) own[id] = own[id] + -infinity();
    }
}
EXPORT(add_biases);

// In place; tops [R D] hold 0 before. `counts` null: no row has penalties. Grid (pieces, R D).
KERNEL(256) process(Global<f32> logits, i32 vocab, i32 width, Global<const i32> ints, Global<const f64> floats, Global<const u32> counts, Global<const u32> masks, i32 mask_words, Global<u64> tops) {
    SHARED(u64, best, 8);
    i32 row = i32(block_y()) / width, j = i32(block_y()) % width;
    auto own = ints + i64(row) * kInts;
    auto values = floats + i64(row) * kFloats;
    if (j >= own[kPositions]) return;
    bool penalised = counts && own[kCounts];
    f32 repetition = f32(f64(values[kRepetition])), presence = f32(f64(values[kPresence])), frequency = f32(f64(values[kFrequency]));
    i64 mask = own[kMaskFirst];
    auto allowed = masks + (mask < 0 ? 0 : (mask + j) * mask_words);
    u64 top = 0;
    for (i32 id = i32(block_x() * n_threads() + thread_index()); id < vocab; id += i32(n_blocks_x() * n_threads())) {
        i64 at = i64(block_y()) * vocab + id;
        f32 x = logits[at];
        if (penalised) {
            u32 count = counts[at];
            if (count & kSeen) x = x > 0.0f ? quotient(x, repetition) : x * repetition;
            if (count & ~kSeen) x -= f32(count & ~kSeen) * frequency + presence;
        }
        if (mask >= 0 && !(allowed[id >> 5] >> (id & 31) & 1)) x = -infinity();
        if (penalised || mask >= 0) logits[at] = x;
        u64 key = order_key(x, u32(id));
        top = key > top ? key : top;
    }
    UNROLL for (u32 flip = 16; flip; flip /= 2) {
        u64 other = shuffle_xor(top, flip);
        top = other > top ? other : top;
    }
    if (lane_index() == 0) best[warp_index()] = top;
    barrier();
    if (thread_index() == 0) {
        for (u32 w = 1; w < n_threads() / 32; w++) top = best[w] > top ? u64(best[w]) : top;
        atomic_max(tops + block_y(), top);
    }
}
EXPORT(process);

struct Search {
    Global<const f32> logits;
    i32 vocab;
    f64 temperature, top;  // the best logit over the temperature
    Shared<u64> masses;
    Shared<u32> counts;
    Shared<u64> found;  // the bin, what lies above it, how many keys it has, the sum of all bins
};

// e^(scaled - top) times 2^44.
DEVICE u64 mass_of(const Search& s, f32 logit) {
    f64 below = s.top - f64(logit) / s.temperature;
    if (below > 8.0) return u64(exp2_approx(f32(below) * -1.44269504f) * 17592186044416.0f);
    return u64(exp_f64(-below) * 17592186044416.0);
}

// The first bin at which what lies above it and its own reach `target`; kBins if none does. Warp 0.
DEVICE void find_bin(const Search& s, u64 above, u64 target, bool by_mass, f64 share) {
    constexpr i32 kEach = kBins / 32;
    i32 lane = i32(lane_index());
    u64 own = 0;
    for (i32 i = 0; i < kEach; i++) own += by_mass ? u64(s.masses[lane * kEach + i]) : u64(u32(s.counts[lane * kEach + i]));
    u64 until = own;
    UNROLL for (u32 by = 1; by < 32; by *= 2) {
        u64 other = shuffle_up(until, by);
        if (lane >= i32(by)) until += other;
    }
    u64 all = shuffle(until, 31);
    if (share >= 0.0) {
        f64 wanted = share * f64(all);
        target = u64(wanted);
        if (f64(target) < wanted || target == 0) target++;
    }
    u32 reached = vote(above + until >= target);
    if (lane == 0) {
        s.found[0] = kBins;
        s.found[3] = target;
    }
    warp_barrier();
    if (!reached) return;
    i32 first = 0;
    while (!(reached >> first & 1)) first++;
    u64 before = above + shuffle(until - own, u32(first));
    if (lane == 0) {
        i32 bin = first * kEach;
        for (; bin < first * kEach + kEach - 1; bin++) {
            u64 next = before + (by_mass ? u64(s.masses[bin]) : u64(u32(s.counts[bin])));
            if (next >= target) break;
            before = next;
        }
        s.found[0] = u64(bin);
        s.found[1] = before;
        s.found[2] = u32(s.counts[bin]);
    }
}

// A key such that what lies at or above it, of keys in [low, high], is the shortest such list that reaches the target: of so
// many keys, or of `share` of their mass (>= 0).
DEVICE u64 search(const Search& s, u64 low, u64 high, u64 target, f64 share) {
    bool by_mass = share >= 0.0;
    u64 above = 0;
    while (true) {
        i32 bits = 64 - leading_zeros(high - low), shift = bits > 11 ? bits - 11 : 0;
        for (i32 i = i32(thread_index()); i < kBins; i += i32(n_threads())) {
            s.masses[i] = 0;
            s.counts[i] = 0;
        }
        barrier();
        for (i32 id = i32(thread_index()); id < s.vocab; id += i32(n_threads())) {
            f32 logit = s.logits[id];
            u64 key = order_key(logit, u32(id));
            if (key < low || key > high) continue;
            i32 bin = i32((high - key) >> shift);
            atomic_add(s.counts + bin, 1u);
            if (by_mass) atomic_add(s.masses + bin, mass_of(s, logit));
        }
        barrier();
        if (warp_index() == 0) find_bin(s, above, target, by_mass, share);
        barrier();
        u64 bin = s.found[0];
        target = s.found[3];
        if (bin == kBins) return low;
        above = s.found[1];
        u64 n_keys = s.found[2];
        share = by_mass ? -1.0 : share;  // the target is known now
        high -= bin << shift;
        u64 floor = high - ((u64(1) << shift) - 1);
        if (high - low > high - floor) low = floor;
        if (shift == 0 || n_keys == 1) return low;
        barrier();
    }
}

// least [R D]; grid R D.
KERNEL(512) truncate(Global<const f32> logits, i32 vocab, i32 width, Global<const i32> ints, Global<const f64> floats, Global<const u64> tops, Global<u64> least_keys) {
    SHARED(u64, masses, kBins);
    SHARED(u32, counts, kBins);
    SHARED(u64, found, 4);
    i32 row = i32(block_x()) / width, j = i32(block_x()) % width;
    auto own = ints + i64(row) * kInts;
    auto values = floats + i64(row) * kFloats;
    f64 temperature = values[kTemperature], top_p = values[kTopP];
    u64 top = tops[block_x()], least_key = kFirstFinite;
    i32 top_k = own[kTopK];
    bool is_drawn = j < own[kPositions] && temperature > 0.0 && top >= kFirstFinite && u32(top >> 32) != 0xFFFFFFFFu;
    if (is_drawn) {
        Search s{logits + i64(block_x()) * vocab, vocab, temperature, f64(logit_of_key(top)) / temperature, masses, counts, found};
        if (top_k > 0 && top_k < vocab) least_key = search(s, kFirstFinite, top, u64(top_k), -1.0);
        barrier();
        if (top_p < 1.0) least_key = search(s, least_key, top, 0, top_p > 0.0 ? top_p : 0.0);
    }
    if (thread_index() == 0) least_keys[block_x()] = least_key;
}
EXPORT(truncate);

struct Drawn {
    f64 score;
    u64 key;
};
DEVICE bool is_before(const Drawn& a, const Drawn& b) { return a.score > b.score || (a.score == b.score && a.key > b.key); }

// Of each piece of the vocabulary the best score and its key, [R D, pieces]. Grid (pieces, R D).
KERNEL(256) draw(Global<const f32> logits, i32 vocab, i32 width, Global<const i32> ints, Global<const f64> floats, Global<const u64> tops, Global<const u64> least_keys, Global<f64> scores, Global<u64> keys) {
    SHARED(f64, best_scores, 8);
    SHARED(u64, best_keys, 8);
    i32 row = i32(block_y()) / width, j = i32(block_y()) % width;
    auto own = ints + i64(row) * kInts;
    auto values = floats + i64(row) * kFloats;
    f64 temperature = values[kTemperature], min_p = values[kMinP];
    if (j >= own[kPositions] || temperature <= 0.0) return;
    Noise noise{u32(i32(own[kSeedLow])), u32(i32(own[kSeedHigh])), u32(i32(own[kPosition]) + j), u32(i32(own[kChoice]))};
    u64 least_key = least_keys[block_y()];
    f32 top_logit = logit_of_key(tops[block_y()]), rough_inverse = f32(1.0 / temperature);
    f64 top = f64(top_logit) / temperature;
    f32 rough_depth = min_p > 0.0 ? f32(-log_f64(min_p)) : infinity();
    Drawn best{-f64(infinity()), 0};
    for (i32 id = i32(block_x() * n_threads() + thread_index()); id < vocab; id += i32(n_blocks_x() * n_threads())) {
        f32 logit = logits[i64(block_y()) * vocab + id];
        u64 key = order_key(logit, u32(id));
        if (key < least_key) continue;
        f32 depth = (top_logit - logit) * rough_inverse, doubt = 1e-3f + depth * 1e-6f;
        if (depth > rough_depth + doubt) continue;
        u32 word = noise_word(noise, u32(id));
        if (rough_gumbel(word) - depth < f32(best.score - top) - doubt) continue;
        f64 scaled = f64(logit) / temperature;
        if (depth > rough_depth - doubt && exp_f64(scaled - top) < min_p && scaled < top) continue;
        Drawn drawn{scaled + gumbel(word), key};
        if (is_before(drawn, best)) best = drawn;
    }
    UNROLL for (u32 flip = 16; flip; flip /= 2) {
        Drawn other{shuffle_xor(best.score, flip), shuffle_xor(best.key, flip)};
        if (is_before(other, best)) best = other;
    }
    if (lane_index() == 0) {
        best_scores[warp_index()] = best.score;
        best_keys[warp_index()] = best.key;
    }
    barrier();
    if (thread_index() == 0) {
        for (u32 w = 1; w < n_threads() / 32; w++) {
            Drawn other{best_scores[w], best_keys[w]};
            if (is_before(other, best)) best = other;
        }
        i64 place = i64(block_y()) * n_blocks_x() + block_x();
        scores[place] = best.score;
        keys[place] = best.key;
    }
}
EXPORT(draw);

// sampled [R D]: -1 = nothing was allowed, -2 = a NaN. `scores` null: nothing is drawn.
KERNEL(128) pick(Global<const i32> ints, Global<const f64> floats, i32 width, i32 n, Global<const u64> tops, Global<const f64> scores, Global<const u64> keys, i32 n_pieces, Global<i32> sampled) {
    i32 i = i32(block_x() * n_threads() + thread_index());
    if (i >= n) return;
    i32 row = i / width;
    u64 top = tops[i];
    if (u32(top >> 32) == 0xFFFFFFFFu) {
        sampled[i] = -2;
    } else if (top < kFirstFinite || i % width >= ints[i64(row) * kInts + kPositions]) {
        sampled[i] = -1;
    } else {
        Drawn best{0.0, top};
        if (scores && floats[i64(row) * kFloats + kTemperature] > 0.0) {
            best = {scores[i64(i) * n_pieces], keys[i64(i) * n_pieces]};
            for (i32 piece = 1; piece < n_pieces; piece++) {
                Drawn other{scores[i64(i) * n_pieces + piece], keys[i64(i) * n_pieces + piece]};
                if (is_before(other, best)) best = other;
            }
        }
        sampled[i] = i32(id_of_key(best.key));
    }
}
EXPORT(pick);

// `sampled` as `pick` has it, or as head_argmax has it (`broken` -1: that stands for a NaN). A thread for a row.
KERNEL(128) walk(Global<const i32> ints, Global<const i32> slots, Global<const i32> drafts, i32 n_rows, i32 width, Global<const i32> sampled, i32 broken, Global<i32> last, Global<i32> histories, i32 capacity, Global<i32> tokens,
                 Global<i32> n_tokens, Global<i32> n_accepted, Global<i32> flags) {
    i32 row = i32(block_x() * n_threads() + thread_index());
    if (row >= n_rows) return;
    auto own = sampled + i64(row) * width;
    i32 wanted = ints[i64(row) * kInts + kPositions], taken = 0;
    for (i32 j = 0; j < width; j++) tokens[i64(row) * width + j] = own[j];
    while (taken < wanted - 1 && own[taken] >= 0 && own[taken] == drafts[i64(row) * (width - 1) + taken]) taken++;
    bool is_broken = wanted > 0 && own[taken] == broken, is_dead = wanted > 0 && !is_broken && own[taken] < 0;
    i32 n = wanted > 0 && !is_broken ? taken + !is_dead : 0;
    n_accepted[row] = n ? taken : wanted > 0 && is_dead ? taken : 0;
    n_tokens[row] = n;
    flags[row] = is_dead ? 1 : is_broken ? 2 : 0;
    if (wanted <= 0) return;
    i64 slot = slots[row];
    last[slot] = n ? i32(own[n - 1]) : -1;
    if (!histories) return;
    i32 known = ints[i64(row) * kInts + kHistory];
    for (i32 j = 0; j < n && known + j < capacity; j++) histories[slot * capacity + known + j] = own[j];
}
EXPORT(walk);
