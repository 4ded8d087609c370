// Steps and block moves, one behind another. Invariant: what was asked first takes effect first, and one at a time.
//
// A step that nothing stands behind is run by whoever collects it, so a loop that launches and collects pays nothing for
// the queue. Once a second one is launched a thread of the queue's own runs them, back to back, while its owner works.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "forward.h"

namespace imp {

class StepQueue {
public:
    explicit StepQueue(Forward& forward) : forward_(forward) {}
    ~StepQueue();
    StepQueue(const StepQueue&) = delete;
    StepQueue& operator=(const StepQueue&) = delete;

    void launch(StepPlan* step);             // `step` and all that it points to stay until it is collected
    void copy(int group, std::vector<int32_t> pairs);  // sources and targets
    void collect(StepPlan* step);            // returns once it is done
    void finish();                           // returns once all that was asked is done

private:
    struct Item {
        StepPlan* step;                      // null: blocks are copied
        int group;
        std::vector<int32_t> pairs;
    };

    void run(Item& item);
    void run_first(std::unique_lock<std::mutex>& lock);
    template <class Fn> void run_here_until(std::unique_lock<std::mutex>& lock, Fn&& done);
    void push(Item item);
    void start_thread();
    void work();

    Forward& forward_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Item> waiting_;
    bool running_ = false, in_background_ = false, stopping_ = false;
    std::thread thread_;
};

}  // namespace imp
