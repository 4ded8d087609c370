#include "sampling.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "simd.h"

namespace imp {
namespace {

constexpr int kRun = 64;
alignas(64) constexpr uint32_t kBit[32] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr double kMaskedLogprob = -9999.0;

bool ranks_before(float a, int32_t a_id, float b, int32_t b_id) { return a > b || (a == b && a_id < b_id); }

double gumbel(const SamplerPlan& plan, int64_t position, int32_t id) {
    const double u = (double(philox(plan.seed, position, uint32_t(id), uint32_t(plan.choice))) + 0.5) * 0x1p-32;
    return -std::log(-std::log(u));
}

// No draw of `gumbel` exceeds this: u is at most 1 - 2^-33.
const double kGumbelMax = -std::log(-std::log1p(-0x1p-33));

}  // namespace

uint32_t philox(uint64_t seed, int64_t position, uint32_t id, uint32_t choice) {
    uint32_t c0 = uint32_t(position), c1 = uint32_t(uint64_t(position) >> 32), c2 = id, c3 = choice;
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t(c0) * 0xD2511F53u, p1 = uint64_t(c2) * 0xCD9E8D57u;
        const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = uint32_t(p1);
        c2 = n2;
        c3 = uint32_t(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

void Sampler::run(SamplerPlan& plan, float* const* logits, const int32_t* best) {
    plan.n_tokens = plan.n_accepted = plan.dead_end = plan.not_numbers = plan.mask_late = plan.mask_wait_us = 0;
    plan.n_left_out = 0;
    if (plan.n_ahead && plan.ahead < 0) return;
    if (!has_mask(plan, 0)) {
        plan.mask_late = 1;
        plan.n_left_out = plan.n_drafts;
        return;
    }
    for (int j = 0; j <= plan.n_drafts; ++j) {
        float* own = logits[plan.first_head + j];
        int32_t token = best[plan.first_head + j];
        if (own) {
            if (plan.keep_logits) {
                copy_.assign(own, own + vocab_);
                own = copy_.data();
            }
            process(plan, j, own);
            if (!find_best(own, token)) {
                plan.not_numbers = 1;
                return;
            }
            if (token >= 0 && own[token] == kForbidden) {
                plan.dead_end = 1;
                return;
            }
            if (plan.temperature > 0) token = draw(plan, j, own, token);
        } else if (token < 0) {
            plan.not_numbers = 1;
            return;
        }
        plan.tokens[plan.n_tokens++] = token;
        if (own && plan.n_logprobs >= 0) write_logprobs(plan, j, own, token);
        if (j == plan.n_drafts || token != plan.drafts[j]) return;
        if (!has_mask(plan, j + 1)) {
            plan.n_left_out = plan.n_drafts - j;
            return;
        }
        ++plan.n_accepted;
    }
}

bool Sampler::has_mask(SamplerPlan& plan, int j) {
    if (!plan.masks || !plan.mask_flags) return true;
    const auto filled = [&] { return __atomic_load_n(plan.mask_flags + j, __ATOMIC_ACQUIRE) != 0; };
    if (filled()) return true;
    using Clock = std::chrono::steady_clock;
    const auto began = Clock::now();
    const int32_t waited = plan.mask_wait_us;
    // Asleep, not spinning: the thread that fills the mask may need this very core.
    while (!filled() && plan.mask_wait_us < plan.mask_patience_us) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        plan.mask_wait_us = waited + int32_t(std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began).count());
    }
    return filled();
}

void Sampler::process(const SamplerPlan& plan, int j, float* logits) {
    for (int i = 0; i < plan.n_bias; ++i) logits[plan.bias_ids[i]] += plan.bias[i];
    for (int i = 0; i < plan.n_banned; ++i) logits[plan.banned[i]] = kForbidden;
    penalise(plan, j, logits);
    if (!plan.masks) return;
    const uint32_t* mask = plan.masks + int64_t(j) * plan.mask_words;
    for (int word = 0; word * 32 < vocab_; ++word) {
        const uint32_t bits = mask[word];
        if (bits == 0xffffffffu) continue;
        float* own = logits + word * 32;
        if (word * 32 + 32 > vocab_) {
            for (int i = 0; word * 32 + i < vocab_; ++i)
                if (!(bits >> i & 1)) own[i] = kForbidden;
            continue;
        }
        // No branch per bit: a text's mask is a mixture that no predictor follows.
        for (int i = 0; i < 32; ++i) own[i] = bits & kBit[i] ? own[i] : kForbidden;
    }
}

// Repetition looks at prompt and output, presence and frequency at the output, all within the window; the accepted
// drafts belong to the output.
void Sampler::penalise(const SamplerPlan& plan, int j, float* logits) {
    const bool counts = plan.presence != 0.0f || plan.frequency != 0.0f;
    if (plan.repetition == 1.0f && !counts) return;
    const int n = plan.n_history + j;
    const int n_known = plan.n_history - plan.n_ahead;
    const auto at = [&](int i) {
        if (i < n_known) return plan.history[i];
        return i < plan.n_history ? plan.ahead : plan.drafts[i - plan.n_history];
    };
    const int start = plan.repeat_last_n > 0 ? std::max(0, n - plan.repeat_last_n) : 0;
    counts_.resize(size_t(vocab_), 0);
    if (plan.repetition != 1.0f) {
        for (int i = start; i < n; ++i) {
            int32_t& seen = counts_[size_t(at(i))];
            float& logit = logits[at(i)];
            if (!seen) logit = logit > 0 ? logit / plan.repetition : logit * plan.repetition;
            seen = 1;
        }
        for (int i = start; i < n; ++i) counts_[size_t(at(i))] = 0;
    }
    if (!counts) return;
    const int first = std::max(start, plan.n_prompt);
    for (int i = first; i < n; ++i) ++counts_[size_t(at(i))];
    for (int i = first; i < n; ++i) {
        int32_t& count = counts_[size_t(at(i))];
        if (count) logits[at(i)] -= float(count) * plan.frequency + plan.presence;
        count = 0;
    }
}

bool Sampler::find_best(const float* logits, int32_t& best) {
    const int n_runs = (vocab_ + kRun - 1) / kRun;
    run_max_.resize(size_t(n_runs));
    float top = kForbidden;
    bool numbers = true;
    for (int run = 0; run < n_runs; ++run) {
        const int end = std::min(vocab_, (run + 1) * kRun);
        float most = kForbidden;
        for (int i = run * kRun; i < end; ++i) {
            most = logits[i] > most ? logits[i] : most;
            numbers &= logits[i] == logits[i];
        }
        run_max_[size_t(run)] = most;
        top = most > top ? most : top;
    }
    if (!numbers) return false;
    for (int run = 0; run < n_runs; ++run) {
        if (run_max_[size_t(run)] != top) continue;
        best = run * kRun;
        while (logits[best] != top) ++best;
        return true;
    }
    return false;
}

void Sampler::take_at_least(const float* logits, float bound, bool forbidden_too) {
    candidates_.clear();
    for (size_t run = 0; run < run_max_.size(); ++run) {
        if (run_max_[run] < bound || (run_max_[run] == kForbidden && !forbidden_too)) continue;
        const int end = std::min(vocab_, int(run + 1) * kRun);
        for (int i = int(run) * kRun; i < end; ++i)
            if (logits[i] >= bound && (forbidden_too || logits[i] != kForbidden)) candidates_.push_back({logits[i], i});
    }
}

void Sampler::take_best(const float* logits, int k, bool forbidden_too) {
    const auto before = [](const Candidate& a, const Candidate& b) { return ranks_before(a.logit, a.id, b.logit, b.id); };
    float bound = kForbidden;
    if (k < int(run_max_.size())) {
        // k runs reach the k-th largest maximum, so at least k logits do.
        scratch_ = run_max_;
        std::nth_element(scratch_.begin(), scratch_.begin() + (k - 1), scratch_.end(), std::greater<float>());
        bound = scratch_[size_t(k - 1)];
    }
    take_at_least(logits, bound, forbidden_too);
    if (k < int(candidates_.size())) {
        std::nth_element(candidates_.begin(), candidates_.begin() + (k - 1), candidates_.end(), before);
        candidates_.resize(size_t(k));
    }
    std::sort(candidates_.begin(), candidates_.end(), before);
}

int32_t Sampler::draw(const SamplerPlan& plan, int j, const float* logits, int32_t best) {
    const double t = plan.temperature;
    const float top = logits[best];
    if (plan.top_k > 0 && plan.top_k < vocab_) {
        take_best(logits, plan.top_k);
    } else if (plan.top_p < 1.0) {
        keep_mass(plan, logits, top);
    } else {
        // Without a truncation by rank, what can't win needs no look: noise is bounded. min_p cuts by value.
        const double first_score = double(top) / t + gumbel(plan, plan.position + j, best);
        double bound = first_score - kGumbelMax;
        if (plan.min_p > 0) bound = std::max(bound, double(top) / t + std::log(plan.min_p) - 1e-6);
        take_at_least(logits, float((bound - 1e-6 * std::fabs(bound)) * t));
    }
    while (!candidates_.empty() && candidates_.back().logit == kForbidden) candidates_.pop_back();
    if (plan.top_p < 1.0) {
        // Ordered by now. The shortest prefix whose share of the survivors' mass reaches top_p.
        double sum = 0.0, reached = 0.0;
        std::vector<double> mass(candidates_.size());
        for (size_t i = 0; i < mass.size(); ++i) sum += mass[i] = std::exp(double(candidates_[i].logit) / t - double(top) / t);
        if (!(plan.top_k > 0 && plan.top_k < vocab_)) {
            sum = 0.0;
            for (int i = 0; i < vocab_; ++i) sum += std::exp(double(logits[i]) / t - double(top) / t);
        }
        size_t n = 0;
        while (n < mass.size()) {
            reached += mass[n++] / sum;
            if (reached >= plan.top_p) break;
        }
        candidates_.resize(n);
    }
    if (plan.min_p > 0) {
        const auto lost = [&](const Candidate& c) { return c.id != best && std::exp(double(c.logit) / t - double(top) / t) < plan.min_p; };
        candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), lost), candidates_.end());
    }
    return draw_gumbel(plan, j);
}

// Candidates, ordered, that together certainly hold top_p of the mass.
void Sampler::keep_mass(const SamplerPlan& plan, const float* logits, float top) {
    const double t = plan.temperature;
    double total = 0.0;
    for (int i = 0; i < vocab_; ++i) total += std::exp(double(logits[i]) / t - double(top) / t);
    for (double depth = 4.0;; depth *= 2) {
        take_at_least(logits, depth > 1000.0 ? kForbidden : float(double(top) - depth * t));
        double held = 0.0;
        for (const Candidate& c : candidates_) held += std::exp(double(c.logit) / t - double(top) / t);
        if (depth > 1000.0 || held > total * plan.top_p * (1 + 1e-9)) break;
    }
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return ranks_before(a.logit, a.id, b.logit, b.id); });
}

int32_t Sampler::draw_gumbel(const SamplerPlan& plan, int j) {
    double best_score = -std::numeric_limits<double>::infinity();
    Candidate winner{kForbidden, std::numeric_limits<int32_t>::max()};
    for (const Candidate& c : candidates_) {
        const double scaled = double(c.logit) / plan.temperature;
        if (scaled + kGumbelMax < best_score) continue;
        const double score = scaled + gumbel(plan, plan.position + j, c.id);
        if (score > best_score || (score == best_score && ranks_before(c.logit, c.id, winner.logit, winner.id))) {
            best_score = score;
            winner = c;
        }
    }
    return winner.id;
}

void Sampler::write_logprobs(const SamplerPlan& plan, int j, const float* logits, int32_t token) {
    float top = kForbidden;
    for (const float m : run_max_) top = m > top ? m : top;
    double sum = 0.0;
    int32_t rank = 1;
    const float chosen = logits[token];
    for (int i = 0; i < vocab_; ++i) {
        sum += std::exp(double(logits[i]) - double(top));
        rank += logits[i] > chosen || (logits[i] == chosen && i < token);
    }
    const double log_sum = double(top) + std::log(sum);
    plan.logprobs[j] = float(std::max(double(chosen) - log_sum, kMaskedLogprob));
    plan.ranks[j] = rank;
    if (plan.n_logprobs == 0) return;
    take_best(logits, plan.n_logprobs, true);
    for (int i = 0; i < plan.n_logprobs; ++i) {
        plan.top_ids[j * plan.n_logprobs + i] = candidates_[size_t(i)].id;
        plan.top[j * plan.n_logprobs + i] = float(std::max(double(candidates_[size_t(i)].logit) - log_sum, kMaskedLogprob));
    }
}

}  // namespace imp
