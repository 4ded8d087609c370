#include "machine.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#if defined(__x86_64__)
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch, .-emu_switch
)");
#endif

namespace emu {
namespace {

Kernel*& kernels() {
    static Kernel* first = nullptr;
    return first;
}

uint64_t splitmix(uint64_t& state) {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

std::vector<std::unique_ptr<Region>> buffers;  // of the sequence of launches that runs
Rules the_rules;
uint64_t random_state;
uint32_t accesses_left;  // until the running thread is left
Thread* running = nullptr;

// One launch.
class Machine {
  public:
    explicit Machine(const Launch& launch, Machine* predecessor) : launch_(launch), predecessor_(predecessor) {
        for (Kernel* k = kernels(); k; k = k->next)
            if (!std::strcmp(k->name, launch.kernel)) kernel_ = k;
        if (!kernel_) fail(std::string("there is no kernel ") + launch.kernel);
        if (kernel_->n_args != launch.n_args) fail(std::string(launch.kernel) + " takes another number of arguments");
        if (launch.n_threads == 0 || launch.n_threads > 1024) fail("a block has 1 to 1024 threads");
    }

    void run();
    void run_predecessor() {
        if (!predecessor_) return;
        Machine* before = std::exchange(predecessor_, nullptr);
        Machine* mine = active;
        Thread* thread = running;
        before->run();
        active = mine;
        running = thread;
    }
    const Launch& launch() const { return launch_; }
    static void thread_body();

    Fiber scheduler;
    std::string fault;
    static Machine* active;

  private:
    Block* make_block(uint32_t number, size_t first_stack);
    Thread* pick();
    void describe_deadlock();

    const Launch& launch_;
    Machine* predecessor_;
    Kernel* kernel_ = nullptr;
    std::vector<std::unique_ptr<Block>> resident_;
    friend const Launch& emu::launch();
};
Machine* Machine::active = nullptr;

void set_runnable(Thread& t, bool is) {
    uint64_t bit = uint64_t(1) << t.index % 64;
    uint64_t& word = t.block->runnable[t.index / 64];
    word = is ? word | bit : word & ~bit;
}

void wake(Thread& t) {
    t.state = State::runnable;
    set_runnable(t, true);
}

void leave(State state) {
    Thread& t = *running;
    t.state = state;
    set_runnable(t, state == State::runnable);
    Fiber::swap(t.fiber, Machine::active->scheduler);
}

std::string place(const Thread& t) {
    const uint32_t* b = t.block->index;
    char text[160];
    std::snprintf(text, sizeof text, "%s, block (%u, %u, %u), thread %u", Machine::active->launch().kernel, b[0], b[1], b[2],
                  t.index);
    return text;
}

// Whether whoever touched before surely did so before the running thread does now.
bool is_ordered(const Touch& before, const Thread& now) {
    if (before.thread == 0) return true;
    uint32_t me = now.block->number * 1024 + now.index + 1;
    if (before.thread == me) return true;
    if (before.block != now.block->number) return false;
    if (before.block_epoch < now.block->epoch) return true;
    if (before.thread == kMany) return false;
    bool same_warp = (before.thread - 1) / 32 == (me - 1) / 32;
    return same_warp && before.warp_epoch < now.block->warps[now.index / 32].epoch;
}

Touch touch_of(const Thread& now) {
    return {now.block->number * 1024 + now.index + 1, now.block->number, now.block->epoch,
            now.block->warps[now.index / 32].epoch};
}

[[noreturn]] void fail_race(const Region& region, uint64_t offset, const char* verbs) {
    fail("nothing orders two accesses to byte " + std::to_string(offset) + " of " + region.name + " (" + verbs + ")");
}

void mark_read(Region& region, uint64_t offset, uint32_t bytes) {
    for (uint64_t i = offset; i < offset + bytes; i++) {
        Mark& mark = region.marks[i];
        if (!is_ordered(mark.write, *running)) fail_race(region, i, "a read meets a write");
        if (is_ordered(mark.read, *running)) {
            mark.read = touch_of(*running);
        } else {
            bool same = mark.read.block == running->block->number;
            mark.read = {kMany, same ? mark.read.block : kMany, running->block->epoch, 0};
        }
    }
}

void mark_write(Region& region, uint64_t offset, uint32_t bytes) {
    for (uint64_t i = offset; i < offset + bytes; i++) {
        Mark& mark = region.marks[i];
        if (!is_ordered(mark.write, *running)) fail_race(region, i, "a write meets a write");
        if (!is_ordered(mark.read, *running)) fail_race(region, i, "a write meets a read");
        mark.write = touch_of(*running);
    }
}

void land(const Copy& copy) {
    uint64_t at = copy.to - copy.target->base;
    uint32_t n = copy.bytes - copy.n_zeros;
    if (n) copy.source->read(copy.from, n, 1);
    std::memcpy(copy.to, copy.from, n);
    std::memset(copy.to + n, 0, copy.n_zeros);
    mark_write(*copy.target, at, copy.bytes);
    std::fill_n(copy.target->known.begin() + at, copy.bytes, 1);
}

void end_lane(Thread& t) {
    Block& block = *t.block;
    Warp& warp = block.warps[t.index / 32];
    warp.ended |= 1u << t.lane();
    for (Gather* gather : warp.open)
        if (gather->mask & warp.ended) fail("a warp operation at line " + std::to_string(gather->site) + " waits for a lane that has ended");
    block.n_ended++;
    if (block.n_at_barrier) fail("threads have ended while others wait at the barrier at line " + std::to_string(block.barrier_site));
}

}  // namespace

void Machine::thread_body() {
    Machine& machine = *active;
    try {
        machine.kernel_->entry(machine.launch_.args);
        end_lane(*running);
    } catch (const Fault& fault) {
        machine.fault = place(*running) + ": " + fault.what;
    }
    leave(State::ended);
}

Block* Machine::make_block(uint32_t number, size_t first_stack) {
    auto* block = new Block;
    const uint32_t* grid = launch_.grid;
    block->number = number;
    block->index[0] = number % grid[0];
    block->index[1] = number / grid[0] % grid[1];
    block->index[2] = number / grid[0] / grid[1];
    uint32_t n = launch_.n_threads;
    block->threads.resize(n);
    block->warps.resize((n + 31) / 32);
    block->runnable.assign((n + 63) / 64, 0);
    block->memory.reserve(the_rules.shared_limit + 256);
    block->first_stack = first_stack;
    for (uint32_t i = 0; i < n; i++) {
        Thread& t = block->threads[i];
        t.block = block;
        t.index = i;
        block->warps[i / 32].lanes |= 1u << i % 32;
        set_runnable(t, true);
    }
    return block;
}

Thread* Machine::pick() {
    size_t n_blocks = resident_.size();
    size_t first = the_rules.order == int32_t(Order::random) ? draw() % n_blocks : 0;
    for (size_t b = 0; b < n_blocks; b++) {
        Block& block = *resident_[(first + b) % n_blocks];
        auto& bits = block.runnable;
        size_t n = bits.size();
        if (the_rules.order == int32_t(Order::lowest)) {
            for (size_t w = 0; w < n; w++)
                if (bits[w]) return &block.threads[w * 64 + __builtin_ctzll(bits[w])];
        } else if (the_rules.order == int32_t(Order::highest)) {
            for (size_t w = n; w-- > 0;)
                if (bits[w]) return &block.threads[w * 64 + 63 - __builtin_clzll(bits[w])];
        } else {
            size_t start = draw() % (n * 64);
            for (size_t i = 0; i <= n; i++) {
                size_t w = (start / 64 + i) % n;
                uint64_t word = i ? bits[w] : bits[w] & ~uint64_t(0) << start % 64;
                if (word) return &block.threads[w * 64 + __builtin_ctzll(word)];
            }
        }
    }
    return nullptr;
}

void Machine::describe_deadlock() {
    std::string what;
    for (auto& block : resident_)
        for (Thread& t : block->threads) {
            if (t.state == State::ended || what.size() > 600) continue;
            if (t.state == State::at_barrier) what += "thread " + std::to_string(t.index) + " waits at the barrier at line " + std::to_string(t.site) + "; ";
            if (t.state == State::in_gather) {
                char mask[16];
                std::snprintf(mask, sizeof mask, "%08x", t.gather->mask);
                what += "thread " + std::to_string(t.index) + " waits in a warp operation at line " + std::to_string(t.site) + " for mask " + mask + "; ";
            }
        }
    fault = std::string(launch_.kernel) + ": threads wait for each other for ever: " + what;
}

void Machine::run() {
    active = this;
    uint64_t n_blocks = uint64_t(launch_.grid[0]) * launch_.grid[1] * launch_.grid[2];
    bool is_random = the_rules.order == int32_t(Order::random);
    size_t n_resident = std::min<uint64_t>(n_blocks, is_random ? 1 + draw() % 3 : 1);
    std::vector<uint32_t> order(n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++) order[i] = the_rules.order == int32_t(Order::highest) ? n_blocks - 1 - i : i;
    if (is_random)
        for (size_t i = n_blocks; i > 1; i--) std::swap(order[i - 1], order[draw() % i]);
    for (auto& region : buffers)
        if (region->is_writable) region->marks.assign(region->size, Mark{});
    Stacks stacks(n_resident * launch_.n_threads);
    std::vector<size_t> free_stacks;
    for (size_t i = 0; i < n_resident; i++) free_stacks.push_back(i * launch_.n_threads);
    size_t next = 0;
    while (next < n_blocks || !resident_.empty()) {
        while (next < n_blocks && resident_.size() < n_resident) {
            resident_.emplace_back(make_block(order[next++], free_stacks.back()));
            free_stacks.pop_back();
            for (Thread& t : resident_.back()->threads) t.fiber.start(stacks[resident_.back()->first_stack + t.index], thread_body);
        }
        Thread* t = pick();
        if (!t) {
            describe_deadlock();
            break;
        }
        running = t;
        Fiber::swap(scheduler, t->fiber);
        if (!fault.empty()) break;
        if (t->state == State::before_predecessor) {
            run_predecessor();
            wake(*t);
        }
        if (t->block->n_ended == t->block->threads.size()) {
            free_stacks.push_back(t->block->first_stack);
            for (auto& block : resident_)
                if (block.get() == t->block) {
                    block = std::move(resident_.back());
                    resident_.pop_back();
                    break;
                }
        }
    }
    resident_.clear();
    if (!fault.empty()) fail(fault);
    run_predecessor();
}

Block::~Block() {
    for (Warp& warp : warps)
        for (Gather* gather : warp.open) delete gather;
    for (Region* region : owned) delete region;
}

void fail(const std::string& what) { throw Fault{what}; }
Thread& current() { return *running; }
const Launch& launch() { return Machine::active->launch_; }
const Rules& rules() { return the_rules; }
uint64_t draw() { return splitmix(random_state); }
uint64_t mixed(uint64_t bits) {
    uint64_t state = bits * 0xD6E8FEB86659FD93u ^ the_rules.seed;
    return splitmix(state);
}

void maybe_switch() {
    if (the_rules.order != int32_t(Order::random) || --accesses_left) return;
    accesses_left = 1 + draw() % 24;
    leave(State::runnable);
}

uint64_t Region::check(const void* at, uint32_t bytes, uint32_t alignment, const char* verb) const {
    uint64_t offset = reinterpret_cast<uint64_t>(at) - reinterpret_cast<uint64_t>(base);
    if (offset > size || size - offset < bytes)
        fail(std::string(verb) + " of " + std::to_string(bytes) + " bytes at " + std::to_string(int64_t(offset)) + " of " + name + ", which has " + std::to_string(size));
    if (reinterpret_cast<uint64_t>(at) % alignment)
        fail(std::string(verb) + " of " + name + " at byte " + std::to_string(offset) + " isn't aligned to " + std::to_string(alignment));
    return offset;
}

void Region::read(const void* at, uint32_t bytes, uint32_t alignment) {
    maybe_switch();
    uint64_t offset = check(at, bytes, alignment, "a read");
    if (is_shared)
        for (uint32_t i = 0; i < bytes; i++)
            if (!known[offset + i]) fail("a read of byte " + std::to_string(offset + i) + " of " + name + ", which nobody has written");
    if (!marks.empty()) mark_read(*this, offset, bytes);
}

void Region::write(const void* at, uint32_t bytes, uint32_t alignment) {
    maybe_switch();
    uint64_t offset = check(at, bytes, alignment, "a write");
    if (!is_writable) fail("a write to " + name + ", which is read only");
    mark_write(*this, offset, bytes);
    if (is_shared) std::fill_n(known.begin() + offset, bytes, 1);
}

void Region::atomic(const void* at, uint32_t bytes) {
    maybe_switch();
    uint64_t offset = check(at, bytes, bytes, "an atomic operation");
    if (!is_writable) fail("an atomic operation on " + name + ", which is read only");
    if (is_shared)
        for (uint32_t i = 0; i < bytes; i++)
            if (!known[offset + i]) fail("an atomic operation on " + name + ", which nobody has written");
    for (uint64_t i = offset; i < offset + bytes; i++) {  // atomics don't race with each other
        if (!is_ordered(marks[i].write, *running)) fail_race(*this, i, "an atomic operation meets a write");
    }
}

void Region::begin_copy(const void* at, uint32_t bytes) {
    maybe_switch();
    uint64_t offset = check(at, bytes, bytes, "an asynchronous copy");
    mark_write(*this, offset, bytes);
    std::fill_n(known.begin() + offset, bytes, 0);
    std::memset(base + offset, 0xCB, bytes);
}

void block_barrier(int site) {
    Thread& t = *running;
    Block& block = *t.block;
    if (block.n_ended) fail("a barrier at line " + std::to_string(site) + " that threads which have ended will not reach");
    if (block.n_at_barrier && block.barrier_site != site)
        fail("threads of a block meet at two barriers, at lines " + std::to_string(block.barrier_site) + " and " + std::to_string(site));
    block.barrier_site = t.site = site;
    if (++block.n_at_barrier < block.threads.size()) {
        leave(State::at_barrier);
        return;
    }
    block.n_at_barrier = 0;
    block.epoch++;
    for (Warp& warp : block.warps) warp.epoch++;
    for (Thread& other : block.threads)
        if (&other != &t) wake(other);
    maybe_switch();
}

void await_predecessor() { leave(State::before_predecessor); }

Gathered::Gathered(int kind, uint32_t mask, const void* payload, uint32_t bytes, int site) {
    maybe_switch();
    Thread& t = *running;
    Warp& warp = t.block->warps[t.index / 32];
    uint32_t bit = 1u << t.lane();
    if (!(mask & bit)) fail("the mask of a warp operation at line " + std::to_string(site) + " lacks its own lane");
    if (mask & ~warp.lanes) fail("the mask of a warp operation at line " + std::to_string(site) + " names lanes that there aren't");
    if (mask & warp.ended) fail("the mask of a warp operation at line " + std::to_string(site) + " names a lane that has ended");
    auto fits = [&](Gather* g) { return g->mask == mask && g->kind == kind && g->site == site && !(g->arrived & bit); };
    auto found = std::find_if(warp.open.begin(), warp.open.end(), fits);
    if (found == warp.open.end()) {
        for (Gather* g : warp.open)
            if (g->mask & bit) fail("lanes of a mask part: some are at line " + std::to_string(g->site) + ", some at line " + std::to_string(site));
        warp.open.push_back(new Gather{kind, site, mask, 0, uint32_t(__builtin_popcount(mask)), {}});
        found = warp.open.end() - 1;
    }
    gather_ = *found;
    std::memcpy(gather_->slots[t.lane()], payload, bytes);
    gather_->arrived |= bit;
    t.site = site;
    if (gather_->arrived != mask) {
        t.gather = gather_;
        leave(State::in_gather);
        return;
    }
    warp.open.erase(found);
    uint32_t first = t.index / 32 * 32;
    for (uint32_t lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && first + lane != t.index) wake(t.block->threads[first + lane]);
}

Gathered::~Gathered() {
    if (--gather_->left == 0) delete gather_;
}

void warp_sync(uint32_t mask, int site) {
    uint32_t nothing = 0;
    Warp& warp = running->block->warps[running->index / 32];
    uint32_t before = warp.epoch;
    Gathered all(-1, mask, &nothing, sizeof nothing, site);
    if (mask == warp.lanes && warp.epoch == before) warp.epoch = before + 1;
}

Region* shared_region(const void* site, uint32_t bytes, uint32_t alignment, const char* name) {
    Block& block = *running->block;
    for (auto& [where, region] : block.arrays)
        if (where == site) return region;
    uint32_t at = (block.n_shared + alignment - 1) / alignment * alignment;
    if (at + bytes + launch().dynamic_shared > the_rules.shared_limit)
        fail("the block has " + std::to_string(at + bytes + launch().dynamic_shared) + " bytes of shared memory, more than the " + std::to_string(the_rules.shared_limit) + " that there are");
    if (block.memory.size() < at + bytes + 128) block.memory.resize(at + bytes + 128, 0xCB);
    block.n_shared = at + bytes;
    auto* region = new Region;
    uint8_t* base = reinterpret_cast<uint8_t*>((reinterpret_cast<uint64_t>(block.memory.data()) + 127) / 128 * 128);
    region->base = base + at;
    region->size = bytes;
    region->is_writable = region->is_shared = true;
    region->name = std::string("the shared array ") + name;
    region->marks.resize(bytes);
    region->known.assign(bytes, 0);
    block.arrays.emplace_back(site, region);
    block.owned.push_back(region);
    return region;
}

Region* dynamic_region() {
    static char site;
    uint32_t bytes = launch().dynamic_shared;
    Block& block = *running->block;
    for (auto& [where, region] : block.arrays)
        if (where == &site) return region;
    // Counted with every array already.
    auto& dynamic = const_cast<Launch&>(launch());
    dynamic.dynamic_shared = 0;
    Region* region = shared_region(&site, bytes, 128, "dynamic");
    dynamic.dynamic_shared = bytes;
    return region;
}

Region* region_of(uint64_t address) {
    static Region none{nullptr, 0, false, false, "a null buffer", {}, {}};
    if (!address) return &none;
    for (auto& region : buffers)
        if (address - reinterpret_cast<uint64_t>(region->base) < std::max<uint64_t>(region->size, 1)) return region.get();
    fail("an address that belongs to no buffer");
}

void commit_copies() {
    running->groups.push_back(std::move(running->open));
    running->open.clear();
}

void await_copies(size_t n_left) {
    auto& groups = running->groups;
    while (groups.size() > n_left) {
        auto copies = std::move(groups.front());
        groups.erase(groups.begin());
        for (const Copy& copy : copies) land(copy);
    }
}

Kernel::Kernel(const char* name, Entry entry, int n_args) : name(name), entry(entry), n_args(n_args), next(kernels()) {
    kernels() = this;
}

}  // namespace emu

// Runs launches in order; 0, or 1 with what went wrong in `message`.
extern "C" int emu_run(const emu::Launch* launches, int32_t n_launches, const emu::Buffer* buffers, int32_t n_buffers,
                       const emu::Rules* rules, char* message, int32_t message_bytes) {
    emu::the_rules = *rules;
    emu::random_state = rules->seed;
    emu::accesses_left = 1;
    emu::buffers.clear();
    for (int32_t i = 0; i < n_buffers; i++) {
        auto region = std::make_unique<emu::Region>();
        region->base = reinterpret_cast<uint8_t*>(buffers[i].base);
        region->size = buffers[i].size;
        region->is_writable = buffers[i].is_writable;
        region->name = buffers[i].name;
        emu::buffers.push_back(std::move(region));
    }
    try {
        std::vector<std::unique_ptr<emu::Machine>> chain;
        for (int32_t i = 0; i < n_launches; i++) {
            emu::Machine* before = launches[i].is_dependent && !chain.empty() ? chain.back().get() : nullptr;
            chain.push_back(std::make_unique<emu::Machine>(launches[i], before));
            if (i + 1 == n_launches || !launches[i + 1].is_dependent) {
                chain.back()->run();
                chain.clear();
            }
        }
        return 0;
    } catch (const emu::Fault& fault) {
        std::snprintf(message, message_bytes, "%s", fault.what.c_str());
        return 1;
    }
}
