// Steps of automata of positions (positions.h).

#include "positions.h"

#include <algorithm>
#include <cstring>

namespace imp_grammar {

namespace {

constexpr uint32_t LAST = 0x10FFFF;
constexpr uint32_t HIGH_FIRST = 0xD800, HIGH_LAST = 0xDBFF, LOW_FIRST = 0xDC00, LOW_LAST = 0xDFFF;
constexpr uint32_t FLOORS[4] = {0, 0x80, 0x800, 0x10000};

int32_t hex_digit(int32_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

int32_t escaped(int32_t byte) {
  switch (byte) {
    case '"': case '\\': case '/': return byte;
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return -1;
  }
}

}  // namespace

size_t Moves::fill(int32_t n, const int32_t* distances, int32_t n_shifts, const uint64_t* moved, const int32_t* from, int32_t n_jumps,
                   const uint64_t* words) {
  shifts.assign(distances, distances + n_shifts);
  shifted.assign(moved, moved + static_cast<size_t>(n) * n_shifts);
  for (; n_jumps--; from += 4) {
    jumps.push_back({from[0], from[1], from[2], from[3], bits.size()});
    const uint64_t* own = words + bits.size();
    bits.insert(bits.end(), own, own + from[1] + from[3]);
  }
  return bits.size();
}

void Moves::add(const uint64_t* here, int32_t n, uint64_t* out) const {
  const uint64_t* among = shifted.data();
  for (const int32_t distance : shifts) {
    if (distance == 0) {
      for (int32_t i = 0; i < n; ++i) out[i] |= here[i] & among[i];
    } else if (distance > 0) {
      uint64_t carry = 0;
      for (int32_t i = 0; i < n; ++i) {
        const uint64_t moved = here[i] & among[i];
        out[i] |= moved << distance | carry;
        carry = moved >> (64 - distance);
      }
    } else {
      uint64_t carry = 0;
      for (int32_t i = n - 1; i >= 0; --i) {
        const uint64_t moved = here[i] & among[i];
        out[i] |= moved >> -distance | carry;
        carry = moved << (64 + distance);
      }
    }
    among += n;
  }
  for (const Jump& jump : jumps) {
    const uint64_t* words = bits.data() + jump.bits;
    if (!meets(here + jump.source, words, jump.n_source)) continue;
    words += jump.n_source;
    for (int32_t i = 0; i < jump.n_target; ++i) out[jump.target + i] |= words[i];
  }
}

void Positions::follow(const uint64_t* here, uint64_t* out) const {
  std::memset(out, 0, 8 * static_cast<size_t>(n_words));
  if (links.empty()) return moves.add(here, n_words, out);
  const int32_t n = track_words;
  uint64_t next[MAX_WORDS];
  for (int32_t track = 0; track * n < n_words; ++track, here += n) {
    if (!std::any_of(here, here + n, [](uint64_t word) { return word != 0; })) continue;
    for (const Link& link : links) {
      if (link.then[track].empty()) continue;
      std::memset(next, 0, 8 * static_cast<size_t>(n));
      link.moves.add(here, n, next);
      for (const int32_t then : link.then[track])
        for (int32_t i = 0; i < n; ++i) out[then * n + i] |= next[i];
    }
  }
}

bool Positions::ends_at(const uint64_t* here) const {
  if (goal == Goal::ANY) return meets(here, ends.data(), n_words);
  size_t n_met = 0;
  for (const Part& part : done) n_met += meets(here + part.first, bits.data() + part.bits, part.n);
  return n_met == (goal == Goal::ONE ? 1 : done.size());
}

bool Positions::lives(const uint64_t* here, Count count) const {
  if (goal == Goal::ANY) {
    if (far.empty()) return true;
    const size_t n = n_words, n_near = near.size() / n, n_far = far.size() / n;
    if (count.allowed >= 0 && static_cast<size_t>(count.allowed) < n_near && !meets(here, near.data() + n * count.allowed, n_words))
      return false;
    return meets(here, far.data() + n * std::min<size_t>(count.needed, n_far - 1), n_words);
  }
  if (goal == Goal::ALL && !missing.empty()) {
    if (count.allowed < 0) return true;
    uint32_t met = 0;
    for (size_t i = 0; i < done.size(); ++i)
      met |= static_cast<uint32_t>(meets(here + done[i].first, bits.data() + done[i].bits, done[i].n)) << i;
    return missing[met] <= count.allowed;
  }
  if (goal == Goal::ALL) return !meets(here, lost.data(), n_words);
  int32_t n_met = 0;
  for (const Part& part : done) n_met += meets(here + part.first, bits.data() + part.bits, part.n);
  return n_met < 2;
}

int32_t Positions::kind(uint32_t code_point) const {
  if (code_point < 128) return ascii[code_point];
  const auto next = std::upper_bound(starts.begin(), starts.end(), code_point);
  return kinds[next - starts.begin() - 1];
}

// Whether something of `following` reads some code point in [low, high] and lives on.
bool Positions::reads(const uint64_t* following, uint32_t low, uint32_t high, Count count) {
  if (low > high) return false;
  const auto [found, is_new] = within.try_emplace(static_cast<uint64_t>(low) << 32 | high, Kinds{{0, 0}});
  Kinds& among = found->second;
  if (is_new) {
    size_t at = std::upper_bound(starts.begin(), starts.end(), low) - starts.begin() - 1;
    for (; at < starts.size() && starts[at] <= high; ++at)
      if (kinds[at] >= 0) among.words[kinds[at] >> 6] |= uint64_t{1} << (kinds[at] & 63);
  }
  uint64_t read[MAX_WORDS];
  for (int32_t word = 0; word < 2; ++word)
    for (uint64_t left = among.words[word]; left; left &= left - 1) {
      const uint64_t* chars = of(64 * word + __builtin_ctzll(left));
      if (common(following, chars, n_words, read) && lives(read, count)) return true;
    }
  return false;
}

Inner enter(const PositionText& text, uint64_t* slot) {
  Positions* const p = text.positions;
  Inner inner{p, text.due ? Read::CONTINUATION : Read::TEXT, text.quoted, false, text.due, text.value, text.floor, 0, text.count};
  if (text.due) {
    std::copy(text.here.begin(), text.here.end(), slot);
  } else {
    p->follow(text.here.data(), slot);
    inner.ends = !text.count.needed && p->ends_at(text.here.data());
  }
  return inner;
}

namespace {

// A whole code point was read, which is counted.
Outcome moved_by(const Inner& inner, const uint64_t* following, uint32_t code_point, Inner* after, uint64_t* read, bool* moved) {
  Positions* const p = inner.positions;
  const int32_t kind = p->kind(code_point);
  if (kind < 0 || !common(following, p->of(kind), p->n_words, read) || !p->lives(read, inner.count)) return Outcome::DEAD;
  *after = Inner{p, Read::TEXT, inner.quoted, !inner.count.needed && p->ends_at(read), 0, 0, 0, 0, inner.count};
  *moved = true;
  return Outcome::ALIVE;
}

Outcome continued(const Inner& inner, const uint64_t* following, uint32_t value, int32_t due, uint32_t floor, Inner* after,
                  uint64_t* read, bool* moved) {
  if (!due) {
    if (value < floor || value > LAST) return Outcome::DEAD;
    return moved_by(inner, following, value, after, read, moved);
  }
  const uint32_t low = value << (6 * due);
  const uint32_t high = std::min(low + (1u << (6 * due)) - 1, LAST);
  if (!inner.positions->reads(following, std::max(low, floor), high, inner.count)) return Outcome::DEAD;
  *after = inner;
  after->read = Read::CONTINUATION;
  after->ends = false;
  after->due = due;
  after->value = value;
  after->floor = floor;
  return Outcome::ALIVE;
}

Outcome in_text(const Inner& before, const uint64_t* following, int32_t byte, Inner* after, uint64_t* read, bool* moved) {
  Inner inner = before;
  const bool more = inner.count.more();
  inner.count = inner.count.behind();  // of the code point that begins here
  if (inner.quoted && (byte < 0x20 || byte == '"' || byte == '\\')) {
    if (byte == '"') return inner.ends ? Outcome::POP : Outcome::DEAD;
    if (byte != '\\' || !more || !inner.positions->reads(following, 0, LAST, inner.count)) return Outcome::DEAD;
    *after = inner;
    after->read = Read::ESCAPE;
    after->ends = false;
    return Outcome::ALIVE;
  }
  Outcome found = Outcome::DEAD;
  if (!more) {
    // nothing but the end may come
  } else if (byte < 0x80) {
    found = moved_by(inner, following, byte, after, read, moved);
  } else if (byte >= 0xC2 && byte <= 0xF4) {
    const int32_t due = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    found = continued(inner, following, byte & (0x3F >> due), due, FLOORS[due], after, read, moved);
  }
  return found == Outcome::DEAD && !inner.quoted && inner.ends ? Outcome::POP_AGAIN : found;
}

// A digit of \uXXXX (the plain twin: frames/texts.py, Escape).
Outcome in_hex(const Inner& inner, const uint64_t* following, int32_t byte, Inner* after, uint64_t* read, bool* moved) {
  const int32_t digit = hex_digit(byte);
  if (digit < 0) return Outcome::DEAD;
  Positions* const p = inner.positions;
  const uint32_t value = inner.value << 4 | static_cast<uint32_t>(digit);
  const int32_t due = inner.due - 1;
  const uint32_t low = value << (4 * due), high = low + (1u << (4 * due)) - 1;
  *after = inner;
  after->value = value;
  after->due = due;
  if (inner.read == Read::LOW_HEX) {
    const uint32_t first = std::max(low, LOW_FIRST), last = std::min(high, LOW_LAST);
    if (first > last || !p->reads(following, inner.high + first - LOW_FIRST, inner.high + last - LOW_FIRST, inner.count))
      return Outcome::DEAD;
    return due ? Outcome::ALIVE : moved_by(inner, following, inner.high + first - LOW_FIRST, after, read, moved);
  }
  if (!due && (low < HIGH_FIRST || low > HIGH_LAST)) {
    if (low >= LOW_FIRST && low <= LOW_LAST) return Outcome::DEAD;
    return moved_by(inner, following, low, after, read, moved);
  }
  bool reachable = (low < HIGH_FIRST && p->reads(following, low, std::min(high, HIGH_FIRST - 1), inner.count)) ||
                   (high > LOW_LAST && p->reads(following, std::max(low, LOW_LAST + 1), high, inner.count));
  if (!reachable && low <= HIGH_LAST && high >= HIGH_FIRST) {
    const uint32_t first = std::max(low, HIGH_FIRST) - HIGH_FIRST, last = std::min(high, HIGH_LAST) - HIGH_FIRST;
    reachable = p->reads(following, 0x10000 + (first << 10), 0x10000 + (last << 10) + 0x3FF, inner.count);
  }
  if (!reachable) return Outcome::DEAD;
  if (!due) {
    after->read = Read::LOW_BACKSLASH;
    after->high = 0x10000 + ((value - HIGH_FIRST) << 10);
  }
  return Outcome::ALIVE;
}

}  // namespace

Outcome read_byte(const Inner& inner, const uint64_t* following, int32_t byte, Inner* after, uint64_t* read, bool* moved) {
  *moved = false;
  switch (inner.read) {
    case Read::TEXT:
      return in_text(inner, following, byte, after, read, moved);
    case Read::CONTINUATION:
      if ((byte & 0xC0) != 0x80) return Outcome::DEAD;
      return continued(inner, following, inner.value << 6 | (byte & 0x3F), inner.due - 1, inner.floor, after, read, moved);
    case Read::ESCAPE: {
      const int32_t code_point = escaped(byte);
      if (code_point >= 0) return moved_by(inner, following, code_point, after, read, moved);
      if (byte != 'u') return Outcome::DEAD;
      *after = inner;
      after->read = Read::HEX;
      after->value = 0;
      after->due = 4;
      return Outcome::ALIVE;
    }
    case Read::HEX:
    case Read::LOW_HEX:
      return in_hex(inner, following, byte, after, read, moved);
    case Read::LOW_BACKSLASH:
      if (byte != '\\') return Outcome::DEAD;
      *after = inner;
      after->read = Read::LOW_U;
      return Outcome::ALIVE;
    case Read::LOW_U:
      if (byte != 'u') return Outcome::DEAD;
      *after = inner;
      after->read = Read::LOW_HEX;
      after->value = 0;
      after->due = 4;
      return Outcome::ALIVE;
  }
  return Outcome::DEAD;
}

}  // namespace imp_grammar

using namespace imp_grammar;

extern "C" {

// `segments`: starts and then kinds, n_segments each. `sets`: chars of all classes, then `ends`, then those of the shifts.
// `jumps`: (source, n_source, target, n_target) of each, their words one after another in `words`, and behind them those
// of `done`: (first, n) of each set of the goal. `counted`: the sets of `near`, then those of `far`.
// `missing`: none, or one for each choice of sets of the goal.
Positions* imp_grammar_positions(int32_t n_words, int64_t cost, const int32_t* segments, int32_t n_segments,
                                 const uint64_t* sets, int32_t n_classes, const int32_t* shifts, int32_t n_shifts,
                                 const int32_t* jumps, int32_t n_jumps, const uint64_t* words, int32_t goal,
                                 const int32_t* done, int32_t n_done, const uint64_t* counted, int32_t n_near,
                                 int32_t n_far, const int32_t* missing, int32_t n_missing) {
  auto* p = new Positions();
  p->n_words = n_words;
  p->cost = cost;
  p->starts.assign(segments, segments + n_segments);
  p->kinds.assign(segments + n_segments, segments + 2 * static_cast<size_t>(n_segments));
  size_t at = 0;
  for (uint32_t c = 0; c < 128; ++c) {
    while (at + 1 < p->starts.size() && p->starts[at + 1] <= c) ++at;
    p->ascii[c] = p->kinds[at];
  }
  const size_t n = n_words;
  p->chars.assign(sets, sets + n * n_classes);
  sets += n * n_classes;
  p->ends.assign(sets, sets + n);
  sets += n;
  words += p->moves.fill(n_words, shifts, n_shifts, sets, jumps, n_jumps, words);
  sets += n * n_shifts;
  p->lost.assign(sets, sets + n);
  p->goal = static_cast<Goal>(goal);
  for (; n_done--; done += 2) {
    p->done.push_back({done[0], done[1], p->bits.size()});
    p->bits.insert(p->bits.end(), words, words + done[1]);
    words += done[1];
  }
  p->near.assign(counted, counted + n * n_near);
  p->far.assign(counted + n * n_near, counted + n * (n_near + static_cast<size_t>(n_far)));
  p->missing.assign(missing, missing + n_missing);
  return p;
}

// One more way to go on, of positions in tracks of `track_words`. `then`: by track how many may come next, and which.
void imp_grammar_positions_link(Positions* positions, int32_t track_words, const int32_t* shifts, int32_t n_shifts,
                                const uint64_t* moved, const int32_t* jumps, int32_t n_jumps, const uint64_t* words,
                                const int32_t* then) {
  Link link;
  link.moves.fill(track_words, shifts, n_shifts, moved, jumps, n_jumps, words);
  for (int32_t track = 0; track * track_words < positions->n_words; ++track, then += *then + 1)
    link.then.emplace_back(then + 1, then + 1 + *then);
  positions->track_words = track_words;
  positions->links.push_back(std::move(link));
}

void imp_grammar_positions_free(Positions* positions) { delete positions; }

PositionTexts* imp_grammar_position_texts() { return new PositionTexts(); }

void imp_grammar_position_texts_free(PositionTexts* texts) { delete texts; }

// Local `local` stands for the text behind the positions `here`.
void imp_grammar_position_text(PositionTexts* texts, int32_t local, Positions* positions, const uint64_t* here, int32_t due,
                               uint32_t value, uint32_t floor, int32_t needed, int32_t allowed, int32_t quoted) {
  if (texts->number.size() <= static_cast<size_t>(local))
    texts->number.resize(std::max<size_t>(local + 1, 2 * texts->number.size()), -1);
  texts->number[local] = static_cast<int32_t>(texts->texts.size());
  texts->texts.push_back({positions, std::vector<uint64_t>(here, here + positions->n_words), due, value, floor, {needed, allowed}, quoted != 0});
}

}  // extern "C"
