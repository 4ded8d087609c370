// Texts whose states are sets of positions, read by a walk without making a state
// (imp_server/grammar/machines/glushkov.py has the automaton, imp_server/grammar/machines/position_machine.py the plain twin).

#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace imp_grammar {

constexpr size_t MAX_WORDS = 64;  // of a set: MAX_POSITIONS of glushkov.py, MAX_WORDS of tracked.py

struct Kinds {
  uint64_t words[2];  // bits of classes of characters: 128 at most
};

// What patterns that are read side by side are to do: Goal of glushkov.py.
enum class Goal : int32_t { ANY, ALL, ONE };

// Code points that have to come behind the one that was begun, and that may (-1: any number).
struct Count {
  int32_t needed, allowed;

  bool more() const { return allowed != 0; }
  Count behind() const { return {needed ? needed - 1 : 0, allowed > 0 ? allowed - 1 : allowed}; }
};

// What may come behind the positions of a set, all at once.
struct Moves {
  struct Jump {  // the parts of both sets that aren't empty, in `bits`
    int32_t source, n_source, target, n_target;  // first words, and how many
    size_t bits;
  };

  std::vector<int32_t> shifts;
  std::vector<uint64_t> shifted;  // per shift: the positions that it moves
  std::vector<Jump> jumps;
  std::vector<uint64_t> bits;

  // Of `n` words, shifts and jumps (source, n_source, target, n_target) as told; how many words of `words` were read.
  size_t fill(int32_t n, const int32_t* shifts, int32_t n_shifts, const uint64_t* moved, const int32_t* jumps, int32_t n_jumps,
              const uint64_t* words);
  void add(const uint64_t* here, int32_t n, uint64_t* out) const;
};

// The positions of a pattern stand side by side in tracks: one for each thing that its lookarounds may be waiting for.
struct Link {
  Moves moves;  // within a track
  std::vector<std::vector<int32_t>> then;  // by track: those that may come next
};

// Sets are `n_words` words; bit p is position p.
struct Positions {

  struct Part {  // a set: its words that aren't empty
    int32_t first, n;
    size_t bits;
  };

  int32_t n_words;
  int64_t cost;                  // words read and written for a step
  std::vector<uint32_t> starts;  // first code points of segments whose characters are alike
  std::vector<int32_t> kinds;    // their classes; -1 where no position reads them
  int32_t ascii[128];            // class of each ASCII character
  std::vector<uint64_t> chars;   // per class: the positions that read it
  std::vector<uint64_t> ends;
  Moves moves;
  std::vector<Link> links;  // none where there is one track: then `moves` are all
  int32_t track_words = 0;
  std::vector<uint64_t> bits;
  Goal goal;
  std::vector<Part> done;      // sets of the goal, in `bits`
  std::vector<uint64_t> lost;  // behind these nothing ends
  // By number: positions from which an end is within so many code points, and those from which it may be as far. Empty
  // where none are counted.
  std::vector<uint64_t> near, far;
  std::vector<int32_t> missing;  // by sets of the goal that are met, as bits: the fewest code points that meet all
  std::unordered_map<uint64_t, Kinds> within;  // classes between two code points, once asked for

  // A set that isn't empty lives on.
  bool is_plain() const { return goal == Goal::ANY && far.empty(); }
  bool ends_at(const uint64_t* here) const;
  bool lives(const uint64_t* here, Count count) const;  // of a set that isn't empty
  void follow(const uint64_t* here, uint64_t* out) const;
  bool reads(const uint64_t* following, uint32_t low, uint32_t high, Count count);
  int32_t kind(uint32_t code_point) const;
  const uint64_t* of(int32_t kind) const { return chars.data() + static_cast<size_t>(kind) * n_words; }
};

// A frame on whose row nobody has to wait: its machine is an automaton of positions.
struct PositionText {
  Positions* positions;
  std::vector<uint64_t> here;
  int32_t due;
  uint32_t value, floor;
  Count count;
  bool quoted;  // between the quotes of a JSON string; else bare, and over where no byte fits
};

struct PositionTexts {
  std::vector<int32_t> number;  // by local; -1: none
  std::vector<PositionText> texts;

  const PositionText* of(int32_t local) const {
    if (static_cast<size_t>(local) >= number.size() || number[local] < 0) return nullptr;
    return &texts[number[local]];
  }
};

enum class Read : uint8_t { TEXT, CONTINUATION, ESCAPE, HEX, LOW_BACKSLASH, LOW_U, LOW_HEX };
enum class Outcome : uint8_t { DEAD, ALIVE, POP, POP_AGAIN };

// Where a walk stands within such a text. What may follow lies in a slot of MAX_WORDS words.
struct Inner {
  Positions* positions;
  Read read;
  bool quoted, ends;
  int32_t due;  // continuation bytes, or hexadecimal digits
  uint32_t value, floor, high;
  Count count;
};

// Enter the text: fills `slot` with what may follow.
Inner enter(const PositionText& text, uint64_t* slot);

inline bool meets(const uint64_t* a, const uint64_t* b, int32_t n) {
  for (int32_t i = 0; i < n; ++i)
    if (a[i] & b[i]) return true;
  return false;
}

// The positions of a class among `following`; whether there are any.
inline bool common(const uint64_t* following, const uint64_t* chars, int32_t n, uint64_t* out) {
  uint64_t any = 0;
  for (int32_t i = 0; i < n; ++i) any |= out[i] = following[i] & chars[i];
  return any != 0;
}

// The class of a character of ASCII that a plain set reads between two others, as most bytes of tokens are; -1 where
// that has to be looked into (`read_byte`).
inline int32_t plain_kind(const Inner& inner, int32_t byte) {
  if (inner.read != Read::TEXT || byte < 0x20 || byte >= 0x80 || byte == '"' || byte == '\\') return -1;
  return inner.positions->is_plain() ? inner.positions->ascii[byte] : -1;
}

// One byte from `inner`, whose slot is `following`. ALIVE: `after` is set but for its slot; if it `moved`, `read` holds the
// positions read (else what may follow stays the same).
Outcome read_byte(const Inner& inner, const uint64_t* following, int32_t byte, Inner* after, uint64_t* read, bool* moved);

}  // namespace imp_grammar
