// Fibers: several stacks on one thread of the system, switched by hand.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emu {

constexpr size_t kStackBytes = 96 * 1024;

#if defined(__x86_64__)

// Keeps what a callee must keep (System V ABI) on the stack that is left, and takes it from the one that is entered.
extern "C" void emu_switch(void** left, void* entered);

class Fiber {
  public:
    void start(uint8_t* stack, void (*body)()) {
        auto** top = reinterpret_cast<void**>(stack + kStackBytes);
        *--top = nullptr;  // so that `body` begins aligned as behind a call
        *--top = reinterpret_cast<void*>(body);
        for (int i = 0; i < 6; i++) *--top = nullptr;
        at_ = top;
    }
    static void swap(Fiber& from, Fiber& to) { emu_switch(&from.at_, to.at_); }

  private:
    void* at_ = nullptr;
};

#else

class Fiber {
  public:
    void start(uint8_t* stack, void (*body)()) {
        getcontext(&context_);
        context_.uc_stack.ss_sp = stack;
        context_.uc_stack.ss_size = kStackBytes;
        context_.uc_link = nullptr;
        makecontext(&context_, body, 0);
    }
    static void swap(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }

  private:
    ucontext_t context_;
};

#endif

// Stacks for the threads of some blocks, with an unreadable page below each.
class Stacks {
  public:
    explicit Stacks(size_t count) : bytes_(count * (kStackBytes + kGuard)) {
        void* got = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) throw std::runtime_error("no memory for the stacks of the emulated threads");
        base_ = static_cast<uint8_t*>(got);
        for (size_t i = 0; i < count; i++) mprotect(base_ + i * (kStackBytes + kGuard), kGuard, PROT_NONE);
    }
    ~Stacks() { munmap(base_, bytes_); }
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;
    uint8_t* operator[](size_t i) const { return base_ + i * (kStackBytes + kGuard) + kGuard; }

  private:
    static constexpr size_t kGuard = 4096;
    uint8_t* base_;
    size_t bytes_;
};

}  // namespace emu
