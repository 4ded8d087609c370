// What a call of the C interface answers. Mirrored by name in backends/cpu/errors.py, and compared when the library is loaded.
#pragma once

#include <cstdint>
#include <new>
#include <system_error>

namespace imp {

enum class Error : int32_t {
    ok,
    no_memory,
    no_threads,         // the system gave none
    unknown_layout,     // packed elsewhere
    unexpected,
    // A step contradicts itself:
    wrong_rows,
    wrong_positions,
    wrong_block_table,
    wrong_id,
    beyond_rope,
    wrong_slot,
};

// What `work` answers, or what it failed with: nothing is thrown through the C interface.
template <class Fn> Error guarded(Fn&& work) noexcept {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        return Error::no_memory;
    } catch (const std::system_error&) {
        return Error::no_threads;
    } catch (...) {
        return Error::unexpected;
    }
}

}  // namespace imp
