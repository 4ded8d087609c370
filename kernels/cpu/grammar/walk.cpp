// Walks a vocabulary trie over the transition tables of a grammar (imp_server/grammar/tables.py has the law,
// imp_server/grammar/walk.py the plain twin).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "store.h"

using namespace imp_grammar;

namespace {

// Frames below the top: an arena of (local, below) cells on top of the caller's stack. A non-negative index is an
// arena cell; -1 - k is frame k of the caller's stack (0 = just below the top).
struct Cell {
  int32_t local;
  int32_t below;
};

struct Config {
  int32_t top;
  int32_t below;
};

}  // namespace

extern "C" {

struct Trie {
  const uint8_t* byte;
  const uint16_t* depth;
  const int32_t* skip;
  const int32_t* first;
  const int32_t* ids;
  int32_t n_nodes;
  int32_t max_depth;
};

// Computes the entry of (local, byte) of a foreign local and stores it.
typedef int32_t (*Fill)(int32_t local, int32_t byte);

static int32_t filled(Tables* tables, Fill fill, int32_t local, int32_t byte) {
  if (tables->kinds[local] == FOREIGN) return fill(local, byte);
  tables->objects->fill(local);
  return tables->rows[(static_cast<size_t>(local) << 8) + byte];
}

// Sets in `out` the bit of each token that the stack reads. `stack[0]` is the top. Writes up to max_asks trie nodes to
// `asks`; returns their number (it may exceed max_asks), and in *depth_used how many frames below the top were read.
int32_t imp_grammar_walk(Tables* tables, const Trie* trie, const int32_t* stack, int32_t n_stack, uint32_t* out,
                         Fill fill, int32_t* asks, int32_t max_asks, int32_t* depth_used) {
  thread_local std::vector<Cell> arena;
  thread_local std::vector<Config> path;
  arena.clear();
  path.assign(static_cast<size_t>(trie->max_depth) + 1, Config{stack[0], -1});
  const int32_t n_below = n_stack - 1, n_nodes = trie->n_nodes;
  const uint8_t* const bytes = trie->byte;
  const uint16_t* const depths = trie->depth;
  const int32_t* const first = trie->first;
  const int32_t* const ids = trie->ids;
  const int32_t* rows = tables->rows;  // again after each fill
  Config* const at_depth = path.data();
  int32_t deepest = 0, n_asks = 0;
  int32_t node = 0;
  // the arena holds cells of the current path only if it is cut back; it is small, so it just grows
  while (node < n_nodes) {
    Config* const slot = at_depth + depths[node];
    const int32_t byte = bytes[node];
    Config here = slot[-1];
    const int32_t quick = rows[(static_cast<size_t>(here.top) << 8) + byte];
    if (quick >= 0) {  // nearly all nodes: the top moves on, the stack stays
      *slot = Config{quick, here.below};
      for (int32_t i = first[node]; i < first[node + 1]; ++i) out[ids[i] >> 5] |= 1u << (ids[i] & 31);
      ++node;
      continue;
    }
    if (quick == DEAD) {
      node += trie->skip[node];
      continue;
    }
    bool alive = false, ask = false;
    for (;;) {
      int32_t entry = rows[(static_cast<size_t>(here.top) << 8) + byte];
      if (entry == HOLE) {
        entry = filled(tables, fill, here.top, byte);
        rows = tables->rows;
      }
      if (entry >= 0) {
        here.top = entry;
        alive = true;
        break;
      }
      if (entry > FIRST_OP) {
        ask = entry == ASK;
        break;
      }
      const int32_t* op = tables->ops + 2 * static_cast<size_t>(FIRST_OP - entry);
      const int32_t a = op[0], b = op[1];
      if (a >= 0) {
        arena.push_back(Cell{a, here.below});
        here = Config{b, static_cast<int32_t>(arena.size()) - 1};
        alive = true;
        break;
      }
      Cell waiting;
      if (here.below >= 0) {
        waiting = arena[here.below];
      } else {
        const int32_t k = -1 - here.below;
        if (k >= n_below) break;
        waiting = Cell{stack[k + 1], here.below - 1};
        if (k + 1 > deepest) deepest = k + 1;
      }
      int32_t resumed = rows[(static_cast<size_t>(waiting.local) << 8) + b];
      if (resumed == HOLE) {
        resumed = filled(tables, fill, waiting.local, b);
        rows = tables->rows;
      }
      if (resumed < 0) {
        ask = resumed == ASK;
        break;
      }
      here = Config{resumed, waiting.below};
      if (a == POP) {
        alive = true;
        break;
      }
    }
    if (!alive) {
      if (ask) {
        if (n_asks < max_asks) asks[n_asks] = node;
        ++n_asks;
      }
      node += trie->skip[node];
      continue;
    }
    *slot = here;
    for (int32_t i = first[node]; i < first[node + 1]; ++i) out[ids[i] >> 5] |= 1u << (ids[i] & 31);
    ++node;
  }
  *depth_used = deepest;
  return n_asks;
}

}  // extern "C"
