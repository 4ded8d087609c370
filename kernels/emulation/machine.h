// The CUDA execution model on a CPU: blocks of threads, each a fiber, under a seeded schedule that is unkind where a GPU
// may be. What kernels see of it is emulation/device.h.
//
// A launch ends with a fault, told in words, at the first
//   access outside of its buffer, to a read-only one, or not aligned to its size;
//   read of shared memory that nobody wrote; two accesses to a byte, one of them a write, that nothing orders (threads of a
//   block are ordered by barriers, those of a warp by warp_barrier, too; blocks of a launch by nothing but atomics);
//   warp operation whose mask names lanes that ended or do something else, or lacks the caller; value taken of such a lane;
//   barrier that not all threads of the block reach, or not at the same line;
//   shared memory beyond the architecture's.
// Asynchronous copies land when they are waited for, no sooner, and their target is unknown until then.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fibers.h"

namespace emu {

struct Fault {
    std::string what;
};
[[noreturn]] void fail(const std::string& what);

enum class Order : int32_t { lowest, highest, random };
enum class Sums : int32_t { exact, truncated };

// As the host fills them in (tests/kernels_cuda/emulated.py).
struct Rules {
    int32_t order;
    int32_t sums;  // of mma
    uint64_t seed;
    uint32_t shared_limit;  // bytes a block may have
    int32_t arch;           // 80, 86, ...
};
struct Buffer {
    uint64_t base, size;
    int32_t is_writable;
    const char* name;
};
struct Launch {
    const char* kernel;
    uint32_t grid[3];
    uint32_t n_threads;
    uint32_t dynamic_shared;
    int32_t is_dependent;  // may start before what the launch before it writes
    const uint64_t* args;
    int32_t n_args;
};

// Who touched a byte last, and when.
struct Touch {
    uint32_t thread = 0;  // 0 = nobody; kMany = several, of block `block`
    uint32_t block = 0;   // kMany = of several blocks
    uint32_t block_epoch = 0, warp_epoch = 0;
};
constexpr uint32_t kMany = ~0u;
struct Mark {
    Touch write, read;
};

// A stretch of memory that is checked.
struct Region {
    uint8_t* base = nullptr;
    uint64_t size = 0;
    bool is_writable = false;
    bool is_shared = false;
    std::string name;
    std::vector<Mark> marks;     // of what can be written
    std::vector<uint8_t> known;  // shared: bytes that were written

    void read(const void* at, uint32_t bytes, uint32_t alignment);
    void write(const void* at, uint32_t bytes, uint32_t alignment);
    void atomic(const void* at, uint32_t bytes);
    void begin_copy(const void* at, uint32_t bytes);
    uint64_t check(const void* at, uint32_t bytes, uint32_t alignment, const char* verb) const;
};

struct Copy {
    Region *target, *source;
    uint8_t* to;
    const uint8_t* from;
    uint32_t bytes, n_zeros;  // of `bytes`, the last so many are zeros
};

enum class State { runnable, at_barrier, in_gather, before_predecessor, ended };

constexpr uint32_t kSlotBytes = 64;
struct Gather {
    int kind, site;
    uint32_t mask, arrived, left;
    alignas(16) uint8_t slots[32][kSlotBytes];
};

struct Block;
struct Thread {
    Fiber fiber;
    Block* block = nullptr;
    State state = State::runnable;
    uint32_t index = 0;
    int site = 0;
    Gather* gather = nullptr;
    std::vector<std::vector<Copy>> groups;  // committed, oldest first
    std::vector<Copy> open;                 // not yet committed
    uint32_t lane() const { return index % 32; }
};

struct Warp {
    uint32_t ended = 0, epoch = 0, lanes = 0;
    std::vector<Gather*> open;
};

struct Block {
    uint32_t index[3] = {};
    uint32_t number = 0;
    uint32_t epoch = 0, n_at_barrier = 0, n_ended = 0;
    int barrier_site = 0;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<uint64_t> runnable;  // bits
    std::vector<uint8_t> memory;
    uint32_t n_shared = 0;
    std::vector<std::pair<const void*, Region*>> arrays;  // shared ones by where they are declared
    std::vector<Region*> owned;
    size_t first_stack = 0;
    ~Block();
};

Thread& current();
const Launch& launch();
const Rules& rules();
uint64_t draw();  // of the schedule's own random numbers
uint64_t mixed(uint64_t bits);  // of a value and the seed alone

void maybe_switch();
void block_barrier(int site);
void warp_sync(uint32_t mask, int site);
void await_predecessor();
Region* shared_region(const void* site, uint32_t bytes, uint32_t alignment, const char* name);
Region* dynamic_region();
Region* region_of(uint64_t address);
void commit_copies();
void await_copies(size_t n_left);

// Every lane of `mask` brings `bytes`; each gets all of them once all have come.
class Gathered {
  public:
    Gathered(int kind, uint32_t mask, const void* payload, uint32_t bytes, int site);
    ~Gathered();
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;
    template <class T>
    T of(uint32_t lane) const {
        static_assert(sizeof(T) <= kSlotBytes);
        if (!(gather_->mask >> lane & 1)) fail("a value is taken of lane " + std::to_string(lane) + ", which the mask lacks");
        T value;
        std::memcpy(&value, gather_->slots[lane], sizeof(T));
        return value;
    }

  private:
    Gather* gather_;
};

// Kernels by name.
using Entry = void (*)(const uint64_t* args);
struct Kernel {
    const char* name;
    Entry entry;
    int n_args;
    Kernel* next;
    Kernel(const char* name, Entry entry, int n_args);
};

template <class T>
struct Argument {
    static T read(const uint64_t& bits) {
        static_assert(sizeof(T) <= 8);
        T value;
        std::memcpy(&value, &bits, sizeof(T));
        return value;
    }
};

template <auto F>
struct Entered;
template <class... A, void (*F)(A...)>
struct Entered<F> {
    static constexpr int kArgs = sizeof...(A);
    static void run(const uint64_t* args) { call(args, std::index_sequence_for<A...>{}); }
    template <size_t... I>
    static void call(const uint64_t* args, std::index_sequence<I...>) {
        F(Argument<A>::read(args[I])...);
    }
};

}  // namespace emu
