// Walks a vocabulary trie over the transition tables of a grammar (imp_server/grammar/frames/tables.py has the law,
// imp_server/grammar/masks/walk.py the plain twin).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "positions.h"
#include "store.h"
#include "walk.h"

using namespace imp_grammar;

namespace {

// Frames below the top: an arena of (local, below) cells on top of the caller's stack (it is small, so it just grows). A non-negative index is an
// arena cell; -1 - k is frame k of the caller's stack (0 = just below the top).
struct Cell {
  int32_t local;
  int32_t below;
};

struct Config {
  int32_t top;
  int32_t below;
};

// Siblings still to be looked at, all from one configuration.
struct Level {
  int32_t node;
  int32_t end;
  Config config;
  bool on_names;  // KEYS: still on the trie of known names
  bool in_text;   // in a free text whose plain tokens are set
  bool in_sets;   // in a text of positions: `inners` and `sets` say where
};

}  // namespace

extern "C" {

static int32_t filled(Tables* tables, Fill fill, int32_t local, int32_t byte) {
  if (tables->kinds[local] == FOREIGN) return fill(local, byte);
  tables->objects->fill(local);
  return tables->rows[(static_cast<size_t>(local) << 8) + byte];
}

}  // extern "C"

namespace {

void forbid(const Trie* trie, int32_t node, uint32_t* out) {
  const Links *here = trie->links + node, *next = here + 1;
  for (int32_t i = here->first_id; i < next->first_id; ++i) out[trie->ids[i] >> 5] &= ~(1u << (trie->ids[i] & 31));
  for (int32_t child = here->first_child; child < next->first_child; ++child) forbid(trie, child, out);
}

// What a walk needs for each level, kept from walk to walk.
struct Scratch {
  std::vector<Cell> arena;
  std::vector<Level> levels;
  std::vector<Inner> inners;
  std::vector<uint64_t> sets;  // a slot per level, and one for what was just read

  void reserve(const Trie* trie) {
    const size_t n = static_cast<size_t>(trie->max_depth) + 1;
    if (levels.size() >= n) return;
    levels.resize(n);
    inners.resize(n);
    sets.resize((n + 1) * MAX_WORDS);
  }
  uint64_t* set(size_t level) { return sets.data() + level * MAX_WORDS; }
};

// Words in the time in which a node is looked at, in which a row is read, and in which a set is, but for its own words.
constexpr int64_t LOOKED_AT = 4, READ = 16, SET_READ = 64;

// The way back to where a walk gave way: along the nodes that were open, of which nothing has to be told again.
struct Resuming {
  explicit Resuming(const Cursor& cursor) : nodes(cursor.nodes), n_levels(cursor.n_levels), on_path(cursor.n_levels > 0) {}

  // The node with which level `level` begins, instead of `first`; the level above was entered by an open node.
  int32_t begin(size_t level, int32_t first, int32_t end) {
    const bool goes_on = was_open && level < static_cast<size_t>(n_levels) && first <= nodes[level] && nodes[level] <= end;
    on_path = goes_on && level + 1 < static_cast<size_t>(n_levels);
    return goes_on ? nodes[level] : first;
  }
  void look() {
    was_open = on_path;
    on_path = false;
    has_read |= !was_open;
  }

  const int32_t* nodes;
  int32_t n_levels;
  bool on_path;           // the next node of the level is an open one
  bool was_open = true;  // the node that is being read was open
  bool has_read = false;  // something new, so that a walk that gives way has come on
};

// Take down where the walk stands.
void give_way(Cursor* cursor, const Level* levels, const Level* level) {
  cursor->n_levels = static_cast<int32_t>(level - levels) + 1;
  for (const Level* at = levels; at < level; ++at) cursor->nodes[at - levels] = at->node - 1;
  cursor->nodes[level - levels] = level->node;
}

// KEYS: see imp_grammar_walk_keys. SETS: there are texts of positions.
template <bool KEYS, bool SETS>
int32_t walk(Walker* walker, const Trie* trie, int32_t n_stack, uint32_t* out) {
  const int32_t free_text = walker->tables->objects ? walker->tables->objects->free_start : DEAD;
  Tables* const tables = walker->tables;
  const Fill fill = walker->fill;
  const int32_t* const stack = walker->stack;
  thread_local Scratch scratch;
  std::vector<Cell>& arena = scratch.arena;
  arena.clear();
  const int32_t n_below = n_stack - 1;
  const int32_t* rows = tables->rows;  // again after each fill
  int32_t deepest = 0, n_asks = 0;
  int64_t n_words = 0;
  Level* level = nullptr;
  bool ask = false;

  // The text of positions in which level `at` begins, if it begins in one.
  const auto enters = [&](size_t at, int32_t top) {
    const PositionText* text = tables->texts->of(top);
    if (text == nullptr) return false;
    scratch.inners[at] = enter(*text, scratch.set(at));
    n_words += text->positions->cost;
    return true;
  };
  Cursor& cursor = walker->cursor;
  Resuming resuming(cursor);
  for (int32_t i = 0; i < cursor.block; ++i) trie = trie->next;
  const auto begin = [&] {
    scratch.reserve(trie);
    level = scratch.levels.data();
    *level = Level{resuming.begin(0, 0, trie->n_roots), trie->n_roots, Config{stack[0], -1}, KEYS, false, false};
    if (SETS) level->in_sets = enters(0, stack[0]);
  };
  // The frame below goes on; false: it can't, or can't be told.
  const auto popped = [&](Config& here, int32_t result) {
    Cell waiting;
    if (here.below >= 0) {
      waiting = arena[here.below];
    } else {
      const int32_t k = -1 - here.below;
      if (k >= n_below) return false;
      waiting = Cell{stack[k + 1], here.below - 1};
      if (k + 1 > deepest) deepest = k + 1;
    }
    int32_t resumed = rows[(static_cast<size_t>(waiting.local) << 8) + result];
    if (resumed == HOLE) {
      resumed = filled(tables, fill, waiting.local, result);
      rows = tables->rows;
    }
    ask = resumed == ASK;
    here = Config{resumed, waiting.below};
    return resumed >= 0;
  };
  const auto allow = [&](int32_t node) {
    for (int32_t i = trie->links[node].first_id; i < trie->links[node + 1].first_id; ++i)
      out[trie->ids[i] >> 5] |= 1u << (trie->ids[i] & 31);
  };

  cursor.n_levels = 0;
  begin();
  for (;;) {
    if (level->node == level->end) {
      if (level != scratch.levels.data()) {
        --level;
        continue;
      }
      trie = trie->next;
      if (!trie) break;
      ++cursor.block;
      resuming.was_open = false;
      begin();
      continue;
    }
    if (n_words > cursor.max_words && resuming.has_read) {
      give_way(&cursor, scratch.levels.data(), level);
      break;
    }
    resuming.look();
    n_words += LOOKED_AT;
    const int32_t node = level->node++;
    const int32_t byte = trie->byte[node];
    Config here = level->config;
    const bool on_names = KEYS && level->on_names;
    const bool ends = on_names && (byte == '"' || byte == '\\');
    if (ends && !resuming.was_open) forbid(trie, node, out);
    bool alive = false, over = false;
    ask = false;
    const auto descend = [&](int32_t end, const Config& config, bool names, bool in_text, bool in_sets) {
      const size_t below = level - scratch.levels.data() + 1;
      const int32_t first = trie->links[node].first_child;
      *++level = Level{resuming.begin(below, first, end), end, config, names, in_text, in_sets};
    };
    if (SETS && level->in_sets) {
      const size_t at = level - scratch.levels.data();
      uint64_t* const read = scratch.set(scratch.levels.size());
      Positions* const positions = scratch.inners[at].positions;
      n_words += positions->n_words + SET_READ / 2;
      const int32_t kind = plain_kind(scratch.inners[at], byte);
      if (kind >= 0) {  // as read_byte, without what a plain set doesn't need
        const Links *from = trie->links + node, *to = from + 1;
        const bool leads_on = from->first_child != to->first_child;
        const uint64_t *following = scratch.set(at), *chars = positions->of(kind);
        const int32_t n = positions->n_words;
        if (leads_on ? common(following, chars, n, read) : meets(following, chars, n)) {
          allow(node);
          if (!leads_on) continue;
          Inner& next = scratch.inners[at + 1] = scratch.inners[at];
          next.ends = meets(read, positions->ends.data(), n);
          positions->follow(read, scratch.set(at + 1));
          n_words += positions->cost;
          descend(to->first_child, here, false, false, true);
          continue;
        }
      }
      Inner after;
      bool moved;
      n_words += SET_READ / 2;
      const Outcome outcome = read_byte(scratch.inners[at], scratch.set(at), byte, &after, read, &moved);
      if (outcome == Outcome::DEAD) continue;
      if (outcome == Outcome::ALIVE) {
        allow(node);
        const Links *from = trie->links + node, *to = from + 1;
        if (from->first_child == to->first_child) continue;
        scratch.inners[at + 1] = after;
        if (moved) {
          after.positions->follow(read, scratch.set(at + 1));
          n_words += after.positions->cost;
        } else {
          std::copy_n(scratch.set(at), after.positions->n_words, scratch.set(at + 1));
        }
        descend(to->first_child, here, false, false, true);
        continue;
      }
      alive = popped(here, 0);
      over = !alive || outcome == Outcome::POP;
      alive = alive && over;
    } else {
      const int32_t quick = rows[(static_cast<size_t>(here.top) << 8) + byte];
      if (quick == DEAD) continue;
      alive = quick >= 0;
      if (alive) here.top = quick;  // nearly all nodes that live: the top moves on, the stack stays
    }
    while (!alive && !over) {
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
        if (on_names && !ends) break;
        arena.push_back(Cell{a, here.below});
        here = Config{b, static_cast<int32_t>(arena.size()) - 1};
        alive = true;
        break;
      }
      if (!popped(here, b)) break;
      alive = a == POP;
    }
    if (!alive) {
      if (ask) {
        if (n_asks < walker->max_asks) walker->asks[n_asks] = trie->number[node];
        ++n_asks;
      }
      continue;
    }
    const Links *from = trie->links + node, *to = from + 1;
    int32_t end = to->first_child;
    const bool in_text = trie->inside && here.top == free_text;
    if (in_text) {
      const Inside& inside = trie->inside[node];
      end = inside.mixed_end;
      if (!level->in_text) {
        for (int32_t i = inside.begin; i < inside.end; ++i) out[trie->staying[i] >> 5] |= 1u << (trie->staying[i] & 31);
      }
    }
    allow(node);
    n_words += READ;
    if (from->first_child < end) {
      descend(end, here, on_names && !ends, in_text, false);
      if (SETS) level->in_sets = enters(level - scratch.levels.data(), here.top);
    }
  }
  walker->depth_used = deepest;
  cursor.n_words = n_words;
  return n_asks;
}

constexpr int64_t RANKED = 16;  // words in the time in which the positions of one are ranked

int32_t lowest_rank(const uint64_t* here, int32_t n_words, const int32_t* rank) {
  int32_t found = -1;
  for (int32_t word = 0; word < n_words; ++word)
    for (uint64_t left = here[word]; left; left &= left - 1) {
      const int32_t position = 64 * word + __builtin_ctzll(left);
      if (found < 0 || rank[position] < rank[found]) found = position;
    }
  return found;
}

template <bool KEYS>
int32_t walk(Walker* walker, const Trie* trie, int32_t n_stack, uint32_t* out) {
  return walker->tables->texts ? walk<KEYS, true>(walker, trie, n_stack, out) : walk<KEYS, false>(walker, trie, n_stack, out);
}

}  // namespace

extern "C" {

// From a text of positions: in `out`, by token, the position of least rank behind each token that ends between two
// characters of the text; the others are left as they are. Goes on at the cursor, and may give way.
void imp_grammar_nearest(Walker* walker, const Trie* trie, int32_t local, const int32_t* rank, int32_t* out) {
  const PositionText& text = *walker->tables->texts->of(local);
  const Positions& positions = *text.positions;
  thread_local Scratch scratch;
  Cursor& cursor = walker->cursor;
  Resuming resuming(cursor);
  for (int32_t i = 0; i < cursor.block; ++i) trie = trie->next;
  cursor.n_levels = 0;
  int64_t n_words = 0;
  for (; trie; trie = trie->next, ++cursor.block, resuming.was_open = false) {
    scratch.reserve(trie);
    scratch.inners[0] = enter(text, scratch.set(0));
    uint64_t* const read = scratch.set(scratch.levels.size());
    Level* level = scratch.levels.data();
    *level = Level{resuming.begin(0, 0, trie->n_roots), trie->n_roots, Config{local, -1}, false, false, true};
    while (level >= scratch.levels.data()) {
      if (level->node == level->end) {
        --level;
        continue;
      }
      if (n_words > cursor.max_words && resuming.has_read) {
        give_way(&cursor, scratch.levels.data(), level);
        cursor.n_words = n_words;
        return;
      }
      resuming.look();
      n_words += LOOKED_AT;
      const int32_t node = level->node++;
      const size_t at = level - scratch.levels.data();
      Inner after;
      bool moved;
      n_words += positions.n_words + SET_READ;
      if (read_byte(scratch.inners[at], scratch.set(at), trie->byte[node], &after, read, &moved) != Outcome::ALIVE) continue;
      const Links *from = trie->links + node, *to = from + 1;
      if (moved && from->first_id < to->first_id) {
        const int32_t nearest = lowest_rank(read, positions.n_words, rank);
        n_words += RANKED * positions.n_words;
        for (int32_t i = from->first_id; i < to->first_id; ++i) out[trie->ids[i]] = nearest;
      }
      if (from->first_child == to->first_child) continue;
      scratch.inners[at + 1] = after;
      if (moved) {
        positions.follow(read, scratch.set(at + 1));
        n_words += positions.cost;
      } else {
        std::copy_n(scratch.set(at), positions.n_words, scratch.set(at + 1));
      }
      const int32_t begin = resuming.begin(at + 1, from->first_child, to->first_child);
      *++level = Level{begin, to->first_child, Config{local, -1}, false, false, true};
    }
  }
  cursor.n_words = n_words;
}

// Sets in `out` the bit of each token that the stack reads, from the cursor on; it may give way. Writes up to max_asks trie
// nodes to `asks`; returns their number, which may exceed max_asks.
int32_t imp_grammar_walk(Walker* walker, const Trie* trie, int32_t n_stack, uint32_t* out) {
  return walk<false>(walker, trie, n_stack, out);
}

// The same on the trie of known names, where `out` begins as the mask of an undeclared name: only tokens that are still
// among the known names when they meet a quote or a backslash are judged, and their bits set or taken back.
int32_t imp_grammar_walk_keys(Walker* walker, const Trie* trie, int32_t n_stack, uint32_t* out) {
  return walk<true>(walker, trie, n_stack, out);
}

}  // extern "C"
