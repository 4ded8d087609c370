// Tensors of model files to packed panels: what backends/cpu/layouts.py and block_types.py say in numpy, several times faster.
#pragma once

#include <cstdint>

#include "formats.h"

namespace imp {

// Rows [0, n_rows) of a matrix, each n_blocks blocks of 32 inputs in the file's own blocks, to whole panels; rows past the
// last one are zero. False for a layout that no type of tensor is packed to as it is.
bool pack_rows(FormatId id, const uint8_t* rows, int64_t n_rows, int n_blocks, uint8_t* panels);

// A sum in which every bit of `n` words counts, equal on every machine.
uint64_t digest_of(const uint32_t* words, int64_t n);

}  // namespace imp
