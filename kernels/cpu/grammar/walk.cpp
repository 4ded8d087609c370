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

// One node in one cache line: most nodes that a walk looks at are dead.
struct TrieNode {
  int32_t skip;
  int32_t first;
  uint16_t depth;
  uint8_t byte;
  uint8_t padding;
};

struct Trie {
  const TrieNode* nodes;  // [n_nodes + 1]; of the last one only `first` counts
  const int32_t* ids;
  const int32_t* roots;   // [257] the node of each first byte (that of the next one if there is none)
  int32_t max_depth;
};

// Computes the entry of (local, byte) of a foreign local and stores it.
typedef int32_t (*Fill)(int32_t local, int32_t byte);

static int32_t filled(Tables* tables, Fill fill, int32_t local, int32_t byte) {
  if (tables->kinds[local] == FOREIGN) return fill(local, byte);
  tables->objects->fill(local);
  return tables->rows[(static_cast<size_t>(local) << 8) + byte];
}

// What stays the same from walk to walk, and their second answer.
struct Walker {
  Tables* tables;
  Fill fill;
  const int32_t* stack;  // the top first
  int32_t* asks;
  int32_t max_asks;
  int32_t depth_used;  // how many frames below the top were read
};

// Sets in `out` the bit of each token that the stack reads. Writes up to max_asks trie nodes to `asks`; returns their
// number, which may exceed max_asks.
int32_t imp_grammar_walk(Walker* walker, const Trie* trie, int32_t n_stack, uint32_t* out) {
  Tables* const tables = walker->tables;
  const Fill fill = walker->fill;
  const int32_t* const stack = walker->stack;
  thread_local std::vector<Cell> arena;
  thread_local std::vector<Config> path;
  arena.clear();
  path.assign(static_cast<size_t>(trie->max_depth) + 1, Config{stack[0], -1});
  const int32_t n_below = n_stack - 1;
  const TrieNode* const nodes = trie->nodes;
  const int32_t* const ids = trie->ids;
  const int32_t* rows = tables->rows;  // again after each fill
  Config* const at_depth = path.data();
  int32_t deepest = 0, n_asks = 0;
  if (rows[static_cast<size_t>(stack[0]) << 8] == HOLE) {
    filled(tables, fill, stack[0], 0);
    rows = tables->rows;
  }
  // the arena holds cells of the current path only if it is cut back; it is small, so it just grows
  for (int32_t root = 0; root < 256; ++root) {
    // dead first bytes, nearly all, are told by the row alone
    if (rows[(static_cast<size_t>(stack[0]) << 8) + root] == DEAD) continue;
    const int32_t end = trie->roots[root + 1];
    int32_t node = trie->roots[root];
    while (node < end) {
      const TrieNode at = nodes[node];
      Config* const slot = at_depth + at.depth;
      const int32_t byte = at.byte;
      Config here = slot[-1];
      const int32_t quick = rows[(static_cast<size_t>(here.top) << 8) + byte];
      if (quick >= 0) {  // nearly all nodes that live: the top moves on, the stack stays
        *slot = Config{quick, here.below};
        for (int32_t i = at.first; i < nodes[node + 1].first; ++i) out[ids[i] >> 5] |= 1u << (ids[i] & 31);
        ++node;
        continue;
      }
      if (quick == DEAD) {
        node += at.skip;
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
          if (n_asks < walker->max_asks) walker->asks[n_asks] = node;
          ++n_asks;
        }
        node += at.skip;
        continue;
      }
      *slot = here;
      for (int32_t i = at.first; i < nodes[node + 1].first; ++i) out[ids[i] >> 5] |= 1u << (ids[i] & 31);
      ++node;
    }
  }
  walker->depth_used = deepest;
  return n_asks;
}

}  // extern "C"
