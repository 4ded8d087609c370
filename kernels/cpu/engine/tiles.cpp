#include "tiles.h"

#include <initializer_list>

namespace imp {
namespace {

TileKernel kernel_of(FormatId id, int n_rows) {
    if (is_float(id)) return float_kernel(id, n_rows);
    for (const auto by_width : {narrow_kernel, four_kernel, middle_kernel, wide_kernel})
        if (const TileKernel kernel = by_width(id, n_rows)) return kernel;
    return nullptr;
}

struct KernelTable {
    TileKernel by[int(FormatId::count)][kOneGroupOfMany];
    KernelTable() {
        for (int f = 0; f < int(FormatId::count); ++f)
            for (int r = 0; r < kOneGroupOfMany; ++r) by[f][r] = kernel_of(FormatId(f), r + 1);
    }
};

const KernelTable kKernels;

template <class F> void dequantise(const uint8_t* panel, int lane, int n_in, float* out) {
    const int n_blocks = (n_in + kBlock - 1) / kBlock;
    const uint8_t *at = panel, *header = panel, *rest = panel + F::stream_bytes(n_blocks);
    for (int block = 0; block < n_blocks; ++block, at += F::kPayload, rest += F::kRest) {
        if (block % F::kSpan == 0) {
            header = at;
            at += F::header_bytes(n_blocks - block < F::kSpan ? n_blocks - block : F::kSpan);
        }
        const BlockScales<F> scales = block_scales<F>(header, block % F::kSpan);
        float scale[F::kGroups][16], minimum[F::kGroups][16];
        for (int g = 0; g < F::kGroups; ++g) {
            store(scale[g], scales.scale[g]);
            if constexpr (F::kMinimum) store(minimum[g], scales.minimum[g]);
        }
        for (int k = 0; k < kBlock && block * kBlock + k < n_in; ++k) {
            int value = value_at<F>(at, rest, lane, k);
            if constexpr (F::kZeroShift >= 0) value -= 1 << F::kZeroShift;
            const int g = k * F::kGroups / kBlock;
            const float scaled = scale[g][lane] * float(value);
            out[block * kBlock + k] = F::kMinimum ? scaled + minimum[g][lane] : scaled;
        }
    }
}

}  // namespace

void multiply_unit(const Matrix& matrix, const Activations& activations, int group, int unit, float* out) {
    const int in_group = activations.rows_in(group), first = 2 * unit;
    const int rows = in_group == kGroupRows && activations.n_groups() > 1 ? kOneGroupOfMany : in_group;
    const int n_panels = matrix.n_panels() - first < 2 ? 1 : 2;
    const void* x = is_float(matrix.id()) ? (const void*)activations.float_group(group) : activations.quantised_group(group);
    kKernels.by[matrix.format][rows - 1](matrix.data + first * matrix.panel_bytes, matrix.panel_bytes, n_panels,
                                         matrix.n_blocks, x, out);
}

void multiply_panel(const Matrix& matrix, const Activations& activations, int panel, float* out) {
    const void* x = is_float(matrix.id()) ? (const void*)activations.float_group(0) : activations.quantised_group(0);
    kKernels.by[matrix.format][0](matrix.data + panel * matrix.panel_bytes, matrix.panel_bytes, 1, matrix.n_blocks, x, out);
}

void dequantise_row(const Matrix& matrix, int64_t index, float* out) {
    const uint8_t* panel = matrix.data + index / kPanelRows * matrix.panel_bytes;
    const int lane = int(index % kPanelRows);
    const bool done = with_format(matrix.id(), [&](auto format) {
        dequantise<decltype(format)>(panel, lane, matrix.n_in, out);
    });
    if (done) return;
    for (int k = 0; k < matrix.n_in; ++k) {
        const int64_t at = int64_t(k) * kPanelRows + lane;
        if (matrix.id() == FormatId::f16) out[k] = half_to_float(((const uint16_t*)panel)[at]);
        else if (matrix.id() == FormatId::bf16) out[k] = bf16_to_float(((const uint16_t*)panel)[at]);
        else out[k] = ((const float*)panel)[at];
    }
}

int64_t format_panel_bytes(FormatId id, int n_blocks) {
    int64_t bytes = 0;
    if (with_format(id, [&](auto format) { bytes = decltype(format)::panel_bytes(n_blocks); })) return bytes;
    return int64_t(n_blocks) * kBlock * kPanelRows * (id == FormatId::f32 ? 4 : 2);
}

}  // namespace imp
