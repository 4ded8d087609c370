// Where each field of the structs lies that Python fills, and what the calls take: a library of another version is
// refused by it (imp_server/grammar/machines/abi.py).
#include <cstddef>

#include "walk.h"

using namespace imp_grammar;

namespace {

struct Field {
  const char* name;
  int64_t offset;  // of a struct itself: its size
};

#define SIZE(s) {#s, int64_t(sizeof(s))}
#define AT(s, f) {#s "." #f, int64_t(offsetof(s, f))}

constexpr int64_t CALLS = 3;  // raised whenever a call takes or answers something else; so is CALLS there

const Field kFields[] = {
    {"calls", CALLS},
    SIZE(Tables),
    AT(Tables, rows), AT(Tables, ops), AT(Tables, kinds), AT(Tables, objects), AT(Tables, n_locals), AT(Tables, capacity),
    AT(Tables, n_ops), AT(Tables, ops_capacity), AT(Tables, n_ready), AT(Tables, texts),
    SIZE(Trie),
    AT(Trie, byte), AT(Trie, links), AT(Trie, ids), AT(Trie, number), AT(Trie, inside), AT(Trie, staying), AT(Trie, next),
    AT(Trie, n_roots), AT(Trie, max_depth),
    SIZE(Cursor),
    AT(Cursor, nodes), AT(Cursor, n_levels), AT(Cursor, block), AT(Cursor, max_words), AT(Cursor, n_words),
    SIZE(Walker),
    AT(Walker, tables), AT(Walker, fill), AT(Walker, stack), AT(Walker, asks), AT(Walker, cursor), AT(Walker, max_asks),
    AT(Walker, depth_used),
};

}  // namespace

extern "C" {

int32_t imp_grammar_n_fields() { return int32_t(sizeof(kFields) / sizeof(kFields[0])); }

const char* imp_grammar_field(int32_t index, int64_t* offset) {
  *offset = kFields[index].offset;
  return kFields[index].name;
}

}  // extern "C"
