#include "tiles.h"

namespace imp {

TileKernel four_kernel(FormatId id, int n_rows) {
    TileKernel kernel = nullptr;
    with_format(id, [&](auto format) {
        if constexpr (format.kBits == 4) kernel = kernel_for_rows<decltype(format)>(n_rows);
    });
    return kernel;
}

}  // namespace imp
