// Rows of the table of embeddings. One block for a token.
#include "weights.h"

// out [T, n_in] = table[id] * scale. An id of -1 is what the row's slot sampled last; below 0 after that counts as 0.
KERNEL(128) embed(Global<const i32> ids, Global<const i32> slots, Global<const i32> last, i32 width, Global<const u8> codes, Global<const u8> high, Global<const u8> scales, Global<const u8> minimum, Global<const u8> sub_scale,
                  Global<const u8> sub_minimum, f32 whole, i32 n_in, f32 scale, Global<f32> out) {
    Matrix m{codes, high, scales, minimum, sub_scale, sub_minimum, whole, 0, n_in};
    i32 token = i32(block_x()), id = ids[token], n_units = n_in / kUnit;
    if (id < 0) id = last[slots[token / width]];
    if (id < 0) id = 0;
    for (i32 unit = i32(thread_index()); unit < n_units; unit += i32(n_threads())) {
        Packed packed = load_unit(m, id, unit, n_units);
        UNROLL for (int i = 0; i < kQuads; i++) {
            int group = i * kGroups / kQuads;
            f32 own = scale_of(m, id, unit, n_units, group), least_value = 0.0f, values[4];
            if constexpr (MINIMUM) least_value = minimum_of(m, id, unit, n_units, group);
            unpack_quad(packed, i, values);
            UNROLL for (int j = 0; j < 4; j++) {
                f32 value = FLOATS ? values[j] : values[j] * own;
                if constexpr (MINIMUM) value += least_value;
                out[i64(token) * n_in + unit * kUnit + 4 * i + j] = value * scale;
            }
        }
    }
}
EXPORT(embed);
