// What a walk of a vocabulary trie is given, and where it stands when it gives way.

#pragma once

#include <cstdint>

#include "store.h"

namespace imp_grammar {

struct Links {
  int32_t first_child;
  int32_t first_id;
};

// What is known of a node behind a quote if a free text begins there and goes on to the node.
struct Inside {
  int32_t mixed_end;  // children from here on lead to nothing but plain text
  int32_t begin, end;  // in `staying`: tokens of the subtree that are plain text from that quote on
};

// Breadth first, so that siblings lie side by side: most of what a walk looks at are dead siblings, told by their byte.
// Children of node i are [links[i].first_child, links[i + 1].first_child), its tokens are numbered alike in `ids`.
struct Trie {
  const uint8_t* byte;
  const Links* links;
  const int32_t* ids;
  const int32_t* number;  // of the node in depth-first order
  const Inside* inside;   // per node; null where no token of the trie has a quote
  const int32_t* staying;
  const Trie* next;  // walked after this one
  int32_t n_roots;
  int32_t max_depth;
};

// Computes the entry of (local, byte) of a foreign local and stores it.
typedef int32_t (*Fill)(int32_t local, int32_t byte);

// Where a walk goes on that gave way: the nodes to look at next, by level, of which all but the last are open.
struct Cursor {
  int32_t* nodes;    // room for one more than the deepest trie's levels
  int32_t n_levels;  // 0: at the beginning, and behind the walk: it is over
  int32_t block;     // how many tries of the chain lie behind
  int64_t max_words; // once so many are read and written, give way
  int64_t n_words;   // that were
};

// What stays the same from walk to walk, and their second answer.
struct Walker {
  Tables* tables;
  Fill fill;
  const int32_t* stack;  // the top first
  int32_t* asks;
  Cursor cursor;
  int32_t max_asks;
  int32_t depth_used;  // how many frames below the top were read
};

}  // namespace imp_grammar
