#include "step_queue.h"

#include <chrono>

namespace imp {

StepQueue::~StepQueue() {
    finish();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void StepQueue::launch(StepPlan* step) {
    step->is_done = 0;
    push({step, 0, {}});
}

void StepQueue::copy(int group, std::vector<int32_t> pairs) {
    Item item{nullptr, group, std::move(pairs)};
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (waiting_.empty() && !running_) {
            run(item);
            return;
        }
    }
    push(std::move(item));
}

void StepQueue::push(Item item) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (running_ || !waiting_.empty()) {
        start_thread();
        in_background_ = true;
    }
    waiting_.push_back(std::move(item));
    // The thread may have run out of work since, and nobody has noticed yet: it is still its turn.
    if (in_background_) changed_.notify_all();
}

void StepQueue::start_thread() {
    if (thread_.joinable()) return;
    thread_ = without_signals([this] { work(); });
}

void StepQueue::collect(StepPlan* step) {
    std::unique_lock<std::mutex> lock(mutex_);
    run_here_until(lock, [&] { return step->is_done != 0; });
}

void StepQueue::finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    run_here_until(lock, [&] { return waiting_.empty() && !running_; });
}

template <class Fn> void StepQueue::run_here_until(std::unique_lock<std::mutex>& lock, Fn&& done) {
    while (!done()) {
        if (in_background_ || running_) changed_.wait(lock);
        else run_first(lock);
    }
    if (waiting_.empty() && !running_) in_background_ = false;
}

void StepQueue::run_first(std::unique_lock<std::mutex>& lock) {
    Item item = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = true;
    lock.unlock();
    run(item);
    lock.lock();
    running_ = false;
    if (item.step) item.step->is_done = 1;
    changed_.notify_all();
}

void StepQueue::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
        if (in_background_ && !running_ && !waiting_.empty()) run_first(lock);
        else changed_.wait(lock);
    }
}

void StepQueue::run(Item& item) {
    if (!item.step) {
        for (size_t i = 0; i + 1 < item.pairs.size(); i += 2) forward_.copy_block(item.group, item.pairs[i], item.pairs[i + 1]);
        return;
    }
    const auto began = std::chrono::steady_clock::now();
    item.step->error = guarded([&] {
        const Error wrong = forward_.begin(*item.step);
        if (wrong == Error::ok) forward_.run(*item.step);
        return wrong;
    });
    item.step->elapsed_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace imp
