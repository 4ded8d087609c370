// The tables that a walk reads, and the frames of simple objects, which are made and filled natively
// (imp_server/grammar/frames/tables.py has the law of the tables, imp_server/grammar/frames/simple_objects.py the meaning of the kinds).

#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace imp_grammar {

constexpr int32_t DEAD = -1, HOLE = -2, ASK = -3, FIRST_OP = -4;
constexpr int32_t POP = -1;

enum Kind : uint8_t {
  FOREIGN = 0,  // filled by the caller
  AFTER_GAP,    // a: the local that goes on
  WORD,         // a: the byte, b: the entry behind it
  OPEN,         // a: state, b: tight; the order of the next three is that of PHASES in simple_objects.py
  AFTER,
  COMMA,
  KEY,           // a: state, b: node of the trie; names outside it are forbidden
  KEY_TEXT,      // the same where they are allowed
  WAITING_NAME,  // a: state, b: name
  WAITING_KEY,   // a: state
  WAITING_MEMBER,  // a: state behind the member
  COLON,           // a: state behind the member, b: the local in which its value starts
  COLON_TIGHT,
};

struct Objects;
struct PositionTexts;

// Shared with the caller, who makes the arrays larger when asked (`Grow`), which moves them.
struct Tables {
  int32_t* rows;   // [capacity, 256]
  int32_t* ops;    // [ops_capacity, 2]
  uint8_t* kinds;  // [capacity]
  Objects* objects;
  int32_t n_locals, capacity;
  int32_t n_ops, ops_capacity;
  int32_t n_ready;  // rows that hold nothing but HOLE, or a local's entries
  PositionTexts* texts;  // null while there are none
};

typedef void (*Grow)();

struct Node {
  int32_t first, end, depth;  // names [first, end) share their first `depth` bytes
  int32_t name;               // the one that ends here, or -1
  std::vector<std::pair<uint8_t, int32_t>> children;
};

struct Family {
  std::vector<std::string> names;  // sorted
  std::vector<Node> nodes;         // the root first; none without names
  std::vector<int32_t> starts;     // per name: the local of its value, DEAD if none would do
  std::vector<uint64_t> can;       // bits of the names whose start isn't DEAD
  int32_t undeclared;              // the same for every other name
  int32_t n_words;
};

struct State {
  int32_t family;
  bool loose;
  size_t bits;  // where in Objects::bits `seen` and then `missing` begin
};

struct Objects {
  Objects(Tables* tables, Grow grow, int32_t gap_blank, int32_t gap_newline, int32_t free_start, int32_t escape)
      : tables(tables), grow(grow), gap_blank(gap_blank), gap_newline(gap_newline), free_start(free_start), escape(escape) {}

  int32_t op(int32_t a, int32_t b);
  int32_t local(Kind kind, int32_t a, int32_t b);
  int32_t word(const uint8_t* text, int32_t n, int32_t entry);
  int32_t state(int32_t family, const uint64_t* seen, const uint64_t* missing, bool loose);
  void fill(int32_t local);

  Tables* const tables;
  const Grow grow;
  const int32_t gap_blank, gap_newline;  // DEAD where there is no whitespace
  const int32_t free_start, escape;
  std::vector<Family> families;
  std::vector<State> states;
  std::vector<uint64_t> bits;
  std::vector<std::pair<int32_t, int32_t>> described;  // (a, b) per local

 private:
  struct View {
    const Family& family;
    const uint64_t *seen, *missing;
    bool loose;
  };
  View view(int32_t state) const;
  int32_t after(int32_t state, int32_t name);
  int32_t colon(int32_t state, int32_t name);
  int32_t undeclared_colon(int32_t state);
  void phase(Kind kind, int32_t state, bool tight, int32_t* row);
  void key(int32_t state, int32_t node, int32_t* row);
  void key_text(int32_t state, int32_t node, int32_t* row);
  void gap(int32_t tight, int32_t* row);
  void leaving(int32_t state, int32_t* row);

  std::unordered_map<uint64_t, int32_t> locals_, ops_;
  std::unordered_map<std::string, int32_t> states_;
};

}  // namespace imp_grammar
