// Rows of simple objects: every property obeys its own schema, some names are required, nothing else is asked.
// The plain twin are the frames of imp_server/grammar/frames (objects.py, keys.py, key_texts.py).

#include <algorithm>
#include <cstring>

#include "store.h"

namespace imp_grammar {

namespace {

bool has(const uint64_t* bits, int32_t i) { return bits[i >> 6] >> (i & 63) & 1; }

// The only allowed name of [first, end); -1 if there is none, -2 if there are several.
int32_t only(const uint64_t* can, const uint64_t* seen, int32_t first, int32_t end) {
  int32_t found = -1;
  for (int32_t word = first >> 6; word <= (end - 1) >> 6; ++word) {
    uint64_t left = can[word] & ~seen[word];
    if (word == first >> 6) left &= ~uint64_t{0} << (first & 63);
    if (word == (end - 1) >> 6 && (end & 63)) left &= ~uint64_t{0} >> (64 - (end & 63));
    if (!left) continue;
    if (found >= 0 || (left & (left - 1))) return -2;
    found = (word << 6) + __builtin_ctzll(left);
  }
  return found;
}

void all(int32_t* row, int32_t entry) { std::fill(row, row + 256, entry); }

}  // namespace

int32_t Objects::op(int32_t a, int32_t b) {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
  const auto found = ops_.find(key);
  if (found != ops_.end()) return FIRST_OP - found->second;
  if (tables->n_ops == tables->ops_capacity) grow();
  const int32_t number = tables->n_ops++;
  tables->ops[2 * static_cast<size_t>(number)] = a;
  tables->ops[2 * static_cast<size_t>(number) + 1] = b;
  ops_.emplace(key, number);
  return FIRST_OP - number;
}

int32_t Objects::local(Kind kind, int32_t a, int32_t b) {
  const uint64_t key =
      static_cast<uint64_t>(kind) << 60 | static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
  const auto found = locals_.find(key);
  if (found != locals_.end()) return found->second;
  if (tables->n_locals == tables->n_ready) grow();
  const int32_t id = tables->n_locals++;
  tables->kinds[id] = kind;
  if (described.size() <= static_cast<size_t>(id)) described.resize(std::max<size_t>(id + 1, 2 * described.size()));
  described[id] = {a, b};
  locals_.emplace(key, id);
  return id;
}

int32_t Objects::word(const uint8_t* text, int32_t n, int32_t entry) {
  while (n--) entry = local(WORD, text[n], entry);
  return entry;
}

int32_t Objects::state(int32_t family, const uint64_t* seen, const uint64_t* missing, bool loose) {
  const size_t n_words = families[family].n_words;
  std::string key(reinterpret_cast<const char*>(&family), sizeof family);
  key += loose ? '\1' : '\0';
  key.append(reinterpret_cast<const char*>(seen), 8 * n_words);
  key.append(reinterpret_cast<const char*>(missing), 8 * n_words);
  const auto [at, is_new] = states_.emplace(std::move(key), static_cast<int32_t>(states.size()));
  if (is_new) {
    states.push_back({family, loose, bits.size()});
    // the arguments may point into `bits`: out of the key, which doesn't move
    bits.resize(bits.size() + 2 * n_words);
    std::memcpy(bits.data() + states.back().bits, at->first.data() + sizeof family + 1, 16 * n_words);
  }
  return at->second;
}

Objects::View Objects::view(int32_t state) const {
  const State& s = states[state];
  const Family& family = families[s.family];
  const uint64_t* seen = bits.data() + s.bits;
  return {family, seen, seen + family.n_words, s.loose};
}

int32_t Objects::after(int32_t state, int32_t name) {
  const View v = view(state);
  std::vector<uint64_t> seen(v.seen, v.missing), missing(v.missing, v.missing + v.family.n_words);
  seen[name >> 6] |= uint64_t{1} << (name & 63);
  missing[name >> 6] &= ~(uint64_t{1} << (name & 63));
  return this->state(states[state].family, seen.data(), missing.data(), v.loose);
}

int32_t Objects::colon(int32_t state, int32_t name) {
  const View v = view(state);
  const int32_t start = v.family.starts[name];
  if (start == DEAD || has(v.seen, name)) return DEAD;
  return local(COLON, after(state, name), start);
}

int32_t Objects::undeclared_colon(int32_t state) {
  const View v = view(state);
  if (v.family.undeclared == DEAD) return DEAD;
  return local(COLON, this->state(states[state].family, v.seen, v.missing, true), v.family.undeclared);
}

void Objects::gap(int32_t tight, int32_t* row) {
  if (gap_blank == DEAD) return;
  const int32_t waiting = local(AFTER_GAP, tight, 0);
  row[0x20] = row[0x09] = op(waiting, gap_blank);
  row[0x0A] = op(waiting, gap_newline);
}

void Objects::phase(Kind kind, int32_t state, bool tight, int32_t* row) {
  all(row, DEAD);
  const View v = view(state);
  const int32_t n_names = static_cast<int32_t>(v.family.names.size());
  const bool apart = v.family.undeclared != DEAD;
  const bool complete = std::all_of(v.missing, v.missing + v.family.n_words, [](uint64_t w) { return !w; });
  const bool possible = apart || (n_names && only(v.family.can.data(), v.seen, 0, n_names) != -1);
  if (kind != COMMA && complete) row['}'] = op(POP, 0);
  if (possible) {
    if (kind == AFTER) {
      row[','] = local(COMMA, state, 0);
    } else if (v.loose) {
      row['"'] = ASK;
    } else if (!apart) {
      row['"'] = local(KEY, state, 0);
    } else {
      row['"'] = n_names ? local(KEY_TEXT, state, 0) : op(local(WAITING_KEY, state, 0), free_start);
    }
  }
  if (!tight) gap(local(kind, state, 1), row);
}

void Objects::key(int32_t state, int32_t at, int32_t* row) {
  all(row, DEAD);
  const View v = view(state);
  const Node& node = v.family.nodes[at];
  for (const auto& [byte, child] : node.children) {
    const Node& next = v.family.nodes[child];
    const int32_t name = only(v.family.can.data(), v.seen, next.first, next.end);
    if (name == -1) continue;
    if (name == -2) {
      row[byte] = local(KEY, state, child);
      continue;
    }
    const std::string rest = v.family.names[name].substr(next.depth) + '"';
    const int32_t read = word(reinterpret_cast<const uint8_t*>(rest.data()), static_cast<int32_t>(rest.size()), op(POP, 0));
    row[byte] = op(local(WAITING_NAME, state, name), read);
  }
  if (node.name >= 0) row['"'] = colon(state, node.name);
}

void Objects::leaving(int32_t state, int32_t* row) {
  const int32_t waiting = local(WAITING_KEY, state, 0);
  const int32_t begins = op(waiting, escape);  // makes room before the row is read
  int32_t last = DEAD, entry = DEAD;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const int32_t target = tables->rows[(static_cast<size_t>(free_start) << 8) + byte];
    if (target != last) {
      last = target;
      entry = target >= 0 ? op(waiting, target) : DEAD;
    }
    row[byte] = entry;
  }
  row['\\'] = begins;
}

void Objects::key_text(int32_t state, int32_t at, int32_t* row) {
  leaving(state, row);
  for (const auto& [byte, child] : view(state).family.nodes[at].children) row[byte] = local(KEY_TEXT, state, child);
  const int32_t name = view(state).family.nodes[at].name;
  row['"'] = name >= 0 ? colon(state, name) : undeclared_colon(state);
}

void Objects::fill(int32_t at) {
  const Kind kind = static_cast<Kind>(tables->kinds[at]);
  const auto [a, b] = described[at];
  int32_t row[256];
  switch (kind) {
    case AFTER_GAP:
      all(row, DEAD);
      row[0] = a;
      break;
    case WORD:
      all(row, DEAD);
      row[a] = b;
      break;
    case OPEN:
    case AFTER:
    case COMMA:
      phase(kind, a, b != 0, row);
      break;
    case KEY:
      key(a, b, row);
      break;
    case KEY_TEXT:
      key_text(a, b, row);
      break;
    case WAITING_NAME:
      all(row, DEAD);
      row[0] = colon(a, b);
      break;
    case WAITING_KEY:
      all(row, DEAD);
      row[0] = undeclared_colon(a);
      break;
    case WAITING_MEMBER:
      all(row, DEAD);
      row[0] = local(AFTER, a, 0);
      break;
    case COLON:
    case COLON_TIGHT:
      all(row, DEAD);
      row[':'] = op(local(WAITING_MEMBER, a, 0), b);
      if (kind == COLON) gap(local(COLON_TIGHT, a, b), row);
      break;
    case FOREIGN:
      return;
  }
  std::memcpy(tables->rows + (static_cast<size_t>(at) << 8), row, sizeof row);
}

namespace {

int32_t grow_trie(Family& family, int32_t first, int32_t end, int32_t depth) {
  const int32_t at = static_cast<int32_t>(family.nodes.size());
  family.nodes.push_back({first, end, depth, -1, {}});
  int32_t i = first;
  if (static_cast<int32_t>(family.names[i].size()) == depth) family.nodes[at].name = i++;
  while (i < end) {
    const char byte = family.names[i][depth];
    const int32_t begin = i;
    while (i < end && family.names[i][depth] == byte) ++i;
    const int32_t child = grow_trie(family, begin, i, depth + 1);
    family.nodes[at].children.emplace_back(static_cast<uint8_t>(byte), child);
  }
  return at;
}

}  // namespace

}  // namespace imp_grammar

using namespace imp_grammar;

extern "C" {

Objects* imp_grammar_objects(Tables* tables, Grow grow, int32_t gap_blank, int32_t gap_newline, int32_t free_start,
                             int32_t escape) {
  return tables->objects = new Objects(tables, grow, gap_blank, gap_newline, free_start, escape);
}

void imp_grammar_objects_free(Objects* objects) { delete objects; }

// `data`: the sorted names one after another, name i is [offsets[i], offsets[i + 1]).
int32_t imp_grammar_family(Objects* objects, const char* data, const int32_t* offsets, int32_t n, const int32_t* starts,
                           int32_t undeclared) {
  Family family;
  family.n_words = (n + 63) / 64;
  family.can.resize(family.n_words);
  family.undeclared = undeclared;
  family.starts.assign(starts, starts + n);
  for (int32_t i = 0; i < n; ++i) {
    family.names.emplace_back(data + offsets[i], data + offsets[i + 1]);
    if (starts[i] != DEAD) family.can[i >> 6] |= uint64_t{1} << (i & 63);
  }
  if (n) grow_trie(family, 0, n, 0);
  objects->families.push_back(std::move(family));
  return static_cast<int32_t>(objects->families.size()) - 1;
}

int32_t imp_grammar_state(Objects* objects, int32_t family, const uint64_t* seen, const uint64_t* missing, int32_t loose) {
  return objects->state(family, seen, missing, loose != 0);
}

// Writes the state's `seen` and `missing` bits one after the other, in n_words words each.
void imp_grammar_state_bits(Objects* objects, int32_t state, uint64_t* out) {
  const State& s = objects->states[state];
  std::memcpy(out, objects->bits.data() + s.bits, 16 * static_cast<size_t>(objects->families[s.family].n_words));
}

int32_t imp_grammar_state_family(Objects* objects, int32_t state) { return objects->states[state].family; }
int32_t imp_grammar_state_loose(Objects* objects, int32_t state) { return objects->states[state].loose; }

int32_t imp_grammar_op(Objects* objects, int32_t a, int32_t b) { return objects->op(a, b); }

int32_t imp_grammar_local(Objects* objects, int32_t kind, int32_t a, int32_t b) {
  return objects->local(static_cast<Kind>(kind), a, b);
}

int32_t imp_grammar_word(Objects* objects, const uint8_t* text, int32_t n, int32_t entry) {
  return objects->word(text, n, entry);
}

void imp_grammar_describe(Objects* objects, int32_t local, int32_t* out) {
  out[0] = objects->described[local].first;
  out[1] = objects->described[local].second;
}

void imp_grammar_fill(Objects* objects, int32_t local) { objects->fill(local); }

// First byte of each node's path is left out: (first name, depth) of a node of the trie.
void imp_grammar_node(Objects* objects, int32_t family, int32_t node, int32_t* out) {
  const Node& found = objects->families[family].nodes[node];
  out[0] = found.first;
  out[1] = found.depth;
}

}  // extern "C"
