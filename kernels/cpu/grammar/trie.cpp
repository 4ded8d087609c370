// Lays the trie of a sorted vocabulary out flat (imp_server/grammar/masks/trie.py has the layout and the plain twin).

#include <algorithm>
#include <cstdint>
#include <cstring>

extern "C" {

// `data`: the tokens' bytes one after another, sorted; token t is [offsets[t], offsets[t + 1]) and never empty.
// The outputs have room for offsets[n_tokens] nodes, `first` for one more, `path` for the longest token.
// Returns the number of nodes.
int32_t imp_grammar_trie(const uint8_t* data, const int32_t* offsets, int32_t n_tokens, uint8_t* byte, uint16_t* depth,
                         int32_t* skip, int32_t* first, int32_t* path) {
  int32_t n_nodes = 0, n_path = 0, last_size = 0;
  const uint8_t* last = nullptr;
  for (int32_t t = 0; t < n_tokens; ++t) {
    const uint8_t* token = data + offsets[t];
    const int32_t size = offsets[t + 1] - offsets[t];
    const int32_t limit = std::min(size, last_size);
    int32_t common = 0;
    while (common < limit && last[common] == token[common]) ++common;
    while (n_path > common) {
      const int32_t node = path[--n_path];
      skip[node] = n_nodes - node;
    }
    for (int32_t at = common; at < size; ++at) {
      path[n_path++] = n_nodes;
      byte[n_nodes] = token[at];
      depth[n_nodes] = static_cast<uint16_t>(at + 1);
      first[n_nodes] = t;
      ++n_nodes;
    }
    last = token;
    last_size = size;
  }
  while (n_path) {
    const int32_t node = path[--n_path];
    skip[node] = n_nodes - node;
  }
  first[n_nodes] = n_tokens;
  return n_nodes;
}

}  // extern "C"
