// Blocks of a cache moved about, 16 bytes a thread.
#include "device.h"

// Block from[i] of `source` becomes block to[i] of `target`; a null list is 0, 1, 2 ... Grid (pieces of a block, blocks).
KERNEL(256) copy_blocks(Global<const u8> source, Global<const i32> from, Global<u8> target, Global<const i32> to, i64 stride, i64 block_bytes) {
    i64 at = (i64(block_x()) * n_threads() + thread_index()) * 16, i = block_y();
    if (at >= block_bytes) return;
    i64 first = from ? i64(i32(from[i * stride])) : i, second = to ? i64(i32(to[i * stride])) : i;
    store_as(target + (second * block_bytes + at), load_as<U32x4>(source + (first * block_bytes + at)));
}
EXPORT(copy_blocks);
