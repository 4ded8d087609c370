// The worker threads. One leader (the caller of forward) runs phases one after another; a phase is a number of chunks,
// claimed from one atomic word by whoever is there.
//
// Invariant: a phase ends when its chunks are done, not when its threads have come. A worker that lost its core costs the
// chunk it holds and nothing else. The word carries the phase, so a late worker can never claim from a phase that is over,
// and a phase's description is overwritten only after its last chunk.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace imp {

// A thread that takes no signals: these belong to the interpreter's. Throws std::system_error.
std::thread without_signals(std::function<void()> work);

class Pool {
public:
    // `spin_us`: how long a thread spins for work before it sleeps. Throws std::system_error without threads.
    Pool(int n_threads, int spin_us);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return int(workers_.size()) + 1; }

    // Threads that take part in the following phases, the leader included.
    void use(int n_threads) { active_.store(n_threads < 1 ? 1 : n_threads > size() ? size() : n_threads, std::memory_order_release); }
    int in_use() const { return active_.load(std::memory_order_relaxed); }

    // Runs f(chunk, worker) for every chunk in [0, n_chunks); worker in [0, size()), the leader is 0. Throws what the first
    // chunk that failed threw, once all are done.
    template <class Fn> void run(int n_chunks, Fn&& f) {
        if (n_chunks <= 1 || in_use() == 1) {
            for (int chunk = 0; chunk < n_chunks; ++chunk) f(chunk, 0);
            return;
        }
        using Plain = std::remove_reference_t<Fn>;
        publish(n_chunks, [](void* context, int chunk, int worker) { (*(Plain*)context)(chunk, worker); }, (void*)&f);
    }

    // The same, but the chunks that one worker gets follow each other, so that what it prefetches beyond one is its next:
    // each has a part of them, and whoever is done takes from the end of another's.
    template <class Fn> void run_in_order(int n_chunks, Fn&& f) {
        if (n_chunks <= 1 || in_use() == 1) return run(n_chunks, f);
        split(n_chunks);
        run(n_chunks, [&](int, int worker) { f(take(worker), worker); });
    }

    // Nanoseconds the leader has waited for chunks that others held, since the last call.
    int64_t take_waited_ns() {
        const int64_t waited = waited_ns_;
        waited_ns_ = 0;
        return waited;
    }

private:
    using Call = void (*)(void* context, int chunk, int worker);
    struct alignas(64) Worker {
        std::atomic<uint32_t> bell{0};
        std::atomic<bool> asleep{false};
        std::thread thread;
    };

    struct alignas(64) Part {
        std::atomic<uint64_t> left{0};  // first << 32 | end
    };

    void split(int n_chunks);
    int take(int worker);
    void publish(int n_chunks, Call call, void* context);
    void work(int index);
    void stop();
    void note_failure() noexcept;
    bool claim_one(int worker);
    void wait_until_done();
    void wake(Worker& worker);

    alignas(64) std::atomic<uint64_t> ticket_{0};  // phase << 32 | chunks left to claim
    alignas(64) std::atomic<int> unfinished_{0};
    alignas(64) std::atomic<int> active_{1};
    std::atomic<uint32_t> leader_waits_{0};
    std::atomic<bool> stopping_{false}, failed_{false};
    std::exception_ptr failure_;                   // of the phase, once `failed_`
    Call call_ = nullptr;
    void* context_ = nullptr;
    int n_chunks_ = 0;
    int64_t waited_ns_ = 0;
    const int64_t spin_ns_;
    std::vector<std::unique_ptr<Worker>> workers_;
    std::unique_ptr<Part[]> parts_;                // a worker's each, of the phase's chunks
};

}  // namespace imp
