// The C interface. Every function is called by the one thread that owns the model; none throws.
#include "packing.h"
#include "step_queue.h"

using namespace imp;

namespace {

// A model's forward and the steps that wait for it.
struct Model {
    Model(const ModelPlan& plan, int n_threads, int spin_us) : forward(plan, n_threads, spin_us), queue(forward) {}

    Forward forward;
    StepQueue queue;
};

Model& of(void* model) { return *(Model*)model; }

}  // namespace

extern "C" {

int64_t imp_cpu_panel_bytes(int32_t format, int32_t n_blocks) { return format_panel_bytes(FormatId(format), n_blocks); }

Error imp_cpu_open(const ModelPlan* plan, int32_t n_threads, int32_t spin_us, void** model) {
    return guarded([&] {
        *model = new Model(*plan, n_threads, spin_us);
        return Error::ok;
    });
}

void imp_cpu_close(void* model) { delete (Model*)model; }

// Not while steps are under way. What slots knew is forgotten.
void imp_cpu_set_pools(void* model, const PoolPlan* pools) { of(model).forward.set_pools(pools); }

// Not `ok`: it wasn't launched.
Error imp_cpu_launch(void* model, StepPlan* step) {
    return guarded([&] {
        of(model).queue.launch(step);
        return Error::ok;
    });
}

Error imp_cpu_collect(void* model, StepPlan* step) {
    of(model).queue.collect(step);
    return step->error;
}

Error imp_cpu_copy_blocks(void* model, int32_t group, const int32_t* pairs, int32_t n_pairs) {
    return guarded([&] {
        of(model).queue.copy(group, std::vector<int32_t>(pairs, pairs + 2 * int64_t(n_pairs)));
        return Error::ok;
    });
}

// Returns once all steps and copies that were asked for are done.
void imp_cpu_finish(void* model) { of(model).queue.finish(); }

int64_t imp_cpu_waited_ns(void* model) { return of(model).forward.threads().take_waited_ns(); }

// Panels of the head that the last search by its plane multiplied; 0 if it left the row to the full product.
int32_t imp_cpu_panels_evaluated(void* model) { return of(model).forward.plane_search().n_evaluated(); }

// Panels of the head that the last step multiplied for rows whose masks allow few.
int32_t imp_cpu_masked_panels(void* model) { return of(model).forward.n_masked_panels(); }

// Rows of a file's tensor as panels; `unknown_layout` for one that is packed elsewhere.
Error imp_cpu_pack(int32_t format, const uint8_t* rows, int64_t n_rows, int32_t n_blocks, uint8_t* panels) {
    return guarded([&] {
        return pack_rows(FormatId(format), rows, n_rows, n_blocks, panels) ? Error::ok : Error::unknown_layout;
    });
}

uint64_t imp_cpu_digest(const uint32_t* words, int64_t n) { return digest_of(words, n); }

// For tests: out[n_rows, n_out] = x[n_rows, n_in] times the packed matrix, in the arithmetic of the forward.
Error imp_cpu_multiply(const Matrix* matrix, const float* x, int32_t n_rows, float* out) {
    return guarded([&] {
        Activations a;
        Buffer<uint8_t> bytes;
        Buffer<float> floats;
        a.n_rows = n_rows;
        a.n_blocks = matrix->n_blocks;
        if (is_float(matrix->id())) a.floats = floats.get(int64_t(n_rows) * a.n_blocks * kBlock);
        else a.quantised = bytes.get(int64_t(n_rows) * a.n_blocks * kActivationBytes);
        for (int group = 0; group < a.n_groups(); ++group)
            put_group(a, group, x + int64_t(group) * kGroupRows * matrix->n_in, matrix->n_in, matrix->n_in);
        alignas(64) float tile[kGroupRows * kUnitColumns];
        for (int group = 0; group < a.n_groups(); ++group)
            for (int unit = 0; unit * kUnitColumns < matrix->n_out; ++unit) {
                multiply_unit(*matrix, a, group, unit, tile);
                for (int r = 0; r < a.rows_in(group); ++r)
                    for (int i = 0; i < kUnitColumns && unit * kUnitColumns + i < matrix->n_out; ++i)
                        out[int64_t(group * kGroupRows + r) * matrix->n_out + unit * kUnitColumns + i] = tile[r * kUnitColumns + i];
            }
        return Error::ok;
    });
}

// For tests: the `best` id of a split head times the row x by way of its upper bits, or -1; `n_evaluated`: panels that it
// multiplied in full.
Error imp_cpu_plane_best(const Matrix* head, const float* x, int32_t n_threads, int32_t* best, int32_t* n_evaluated) {
    return guarded([&] {
        Activations a;
        Buffer<uint8_t> bytes;
        a.n_rows = 1;
        a.n_blocks = head->n_blocks;
        a.quantised = bytes.get(int64_t(a.n_blocks) * kActivationBytes);
        put_group(a, 0, x, head->n_in, head->n_in);
        Pool pool(n_threads, 50);
        pool.use(n_threads);
        PlaneSearch search;
        *best = search.best(pool, *head, [&](int) -> const Activations& { return a; });
        *n_evaluated = search.n_evaluated();
        return Error::ok;
    });
}

// For tests and adapters: rows [first, first + n_rows) of the packed matrix as floats.
void imp_cpu_dequantise(const Matrix* matrix, int64_t first, int64_t n_rows, float* out) {
    for (int64_t row = 0; row < n_rows; ++row) dequantise_row(*matrix, first + row, out + row * matrix->n_in);
}

// For tests: one row sampled from given logits [1 + n_drafts, vocab], which are changed unless plan->keep_logits.
Error imp_cpu_sample(SamplerPlan* plan, float* logits, int32_t vocab_size) {
    return guarded([&] {
        Sampler sampler(vocab_size);
        std::vector<float*> rows;
        for (int j = 0; j <= plan->n_drafts; ++j) rows.push_back(logits + int64_t(j) * vocab_size);
        const std::vector<int32_t> best(rows.size(), 0);
        plan->first_head = 0;
        sampler.run(*plan, rows.data(), best.data());
        return Error::ok;
    });
}

// Sum of a buffer's 64-bit words: the read bandwidth that decode is measured against.
uint64_t imp_cpu_read_all(const uint64_t* words, int64_t n) {
    uint64_t sums[8] = {};
    for (int64_t i = 0; i + 8 <= n; i += 8) {
        __builtin_prefetch(words + i + 512);
        for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
    }
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum += s;
    return sum;
}

}  // extern "C"
