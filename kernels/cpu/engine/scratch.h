// Memory of one forward, grown when a wider step comes and kept. Owner: Forward.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace imp {

template <class T> class Buffer {
public:
    // Room for n elements, 64-byte aligned; the contents are lost when it grows, or throws std::bad_alloc.
    T* get(int64_t n) {
        if (n > size_) {
            const size_t bytes = (size_t(n) * sizeof(T) + 63) / 64 * 64 + 64;  // kernels may read one vector past the end
            size_ = 0;
            data_.reset();
            data_.reset((T*)std::aligned_alloc(64, bytes));
            if (!data_) throw std::bad_alloc();
            size_ = n;
        }
        return data_.get();
    }
    T* data() const { return data_.get(); }

private:
    struct Free { void operator()(T* p) const { std::free(p); } };
    std::unique_ptr<T, Free> data_;
    int64_t size_ = 0;
};

}  // namespace imp
