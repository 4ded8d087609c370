#include "pool.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace imp {
namespace {

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

#if defined(__linux__)
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_one(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }
#else
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    if (word.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(50));
}
void wake_one(std::atomic<uint32_t>&) {}
#endif

// Spins until ready() or the budget is spent; true if ready.
template <class Fn> bool spin_until(int64_t budget_ns, Fn&& ready) {
    const int64_t end = now_ns() + budget_ns;
    for (;;) {
        for (int i = 0; i < 32; ++i) {
            if (ready()) return true;
            relax();
        }
        if (now_ns() > end) return false;
    }
}

#if defined(__linux__)
// Owner of the signal mask of the thread that it is made in, until its end.
class SignalsHeld {
public:
    SignalsHeld() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsHeld(const SignalsHeld&) = delete;
    SignalsHeld& operator=(const SignalsHeld&) = delete;

private:
    sigset_t before_;
};
#endif

}  // namespace

std::thread without_signals(std::function<void()> work) {
#if defined(__linux__)
    const SignalsHeld held;
#endif
    return std::thread(std::move(work));
}

Pool::Pool(int n_threads, int spin_us) : spin_ns_(int64_t(spin_us) * 1000), parts_(new Part[size_t(n_threads < 1 ? 1 : n_threads)]) {
    for (int i = 1; i < n_threads; ++i) workers_.push_back(std::make_unique<Worker>());
    try {
        for (int i = 1; i < n_threads; ++i) workers_[size_t(i) - 1]->thread = without_signals([this, i] { work(i); });
    } catch (...) {
        stop();  // a thread that nobody joins ends the process
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    stopping_.store(true);
    for (auto& worker : workers_) {
        worker->bell.fetch_add(1);
        wake_one(worker->bell);
    }
    for (auto& worker : workers_)
        if (worker->thread.joinable()) worker->thread.join();
}

void Pool::wake(Worker& worker) {
    if (!worker.asleep.load(std::memory_order_seq_cst)) return;
    worker.bell.fetch_add(1, std::memory_order_seq_cst);
    wake_one(worker.bell);
}

void Pool::publish(int n_chunks, Call call, void* context) {
    call_ = call;
    context_ = context;
    n_chunks_ = n_chunks;
    unfinished_.store(n_chunks, std::memory_order_relaxed);
    const uint64_t phase = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(phase << 32 | uint64_t(n_chunks), std::memory_order_seq_cst);
    const int helpers = (n_chunks < in_use() ? n_chunks : in_use()) - 1;
    for (int i = 0; i < helpers; ++i) wake(*workers_[i]);
    while (claim_one(0)) {}
    wait_until_done();
    if (failed_.exchange(false, std::memory_order_relaxed)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// The one that comes first is kept; the leader reads it behind the phase's last chunk.
void Pool::note_failure() noexcept {
    if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
}

void Pool::split(int n_chunks) {
    const int n = in_use();
    for (int i = 0; i < size(); ++i) {
        const auto end_of = [&](int part) { return uint64_t(int64_t(n_chunks) * std::min(part, n) / n); };
        parts_[size_t(i)].left.store(end_of(i) << 32 | end_of(i + 1), std::memory_order_relaxed);
    }
}

// Whoever is called has a chunk due to it, and a part that is empty stays so: one look at each finds it.
int Pool::take(int worker) {
    for (int i = 0; i < size(); ++i) {
        std::atomic<uint64_t>& left = parts_[size_t((worker + i) % size())].left;
        uint64_t known = left.load(std::memory_order_relaxed);
        for (uint64_t first, end; first = known >> 32, end = uint32_t(known), first < end;)
            if (left.compare_exchange_weak(known, i == 0 ? known + (uint64_t(1) << 32) : known - 1, std::memory_order_relaxed))
                return int(i == 0 ? first : end - 1);
    }
    std::abort();
}

bool Pool::claim_one(int worker) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
        if (uint32_t(ticket) == 0) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    try {
        call_(context_, n_chunks_ - int(uint32_t(ticket)), worker);
    } catch (...) {
        note_failure();
    }
    // The last chunk of a phase wakes a leader that has gone to sleep. The leader may end the phase, and with it the
    // pool's owner the pool, only once the count is 0, so nothing but the pool itself is touched afterwards.
    if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1 && leader_waits_.load(std::memory_order_seq_cst)) {
        leader_waits_.store(0, std::memory_order_seq_cst);
        wake_one(leader_waits_);
    }
    return true;
}

void Pool::wait_until_done() {
    const auto done = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (done()) return;
    const int64_t start = now_ns();
    while (!spin_until(spin_ns_, done)) {
        leader_waits_.store(1, std::memory_order_seq_cst);
        if (!done()) sleep_while(leader_waits_, 1);
        leader_waits_.store(0, std::memory_order_seq_cst);
    }
    waited_ns_ += now_ns() - start;
}

void Pool::work(int index) {
    Worker& self = *workers_[index - 1];
    const auto has_work = [&] {
        return stopping_.load(std::memory_order_relaxed) ||
               (index < active_.load(std::memory_order_relaxed) && uint32_t(ticket_.load(std::memory_order_seq_cst)) != 0);
    };
    for (;;) {
        if (!spin_until(spin_ns_, has_work)) {
            const uint32_t bell = self.bell.load(std::memory_order_seq_cst);
            self.asleep.store(true, std::memory_order_seq_cst);
            if (!has_work()) sleep_while(self.bell, bell);
            self.asleep.store(false, std::memory_order_seq_cst);
            continue;
        }
        if (stopping_.load()) return;
        claim_one(index);
    }
}

}  // namespace imp
