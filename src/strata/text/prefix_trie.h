// All tokens of a vocabulary that begin at a place of a text: what Unigram and WordPiece ask for.
// Flat arrays: the children of a node lie side by side, ordered by their byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace strata::text {

class PrefixTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = UINT32_MAX;

  PrefixTrie() = default;
  // The last id of a repeated token counts. Empty tokens are left out.
  explicit PrefixTrie(std::vector<std::pair<std::string_view, int32_t>> tokens);

  // The node after `byte`, or kNone.
  uint32_t next(uint32_t node, char byte) const {
    const Node& at = nodes_[node];
    const void* found = at.num_children == 0
                            ? nullptr
                            : std::memchr(labels_.data() + at.first_child,
                                          static_cast<uint8_t>(byte), at.num_children);
    return found == nullptr
               ? kNone
               : static_cast<uint32_t>(static_cast<const uint8_t*>(found) - labels_.data());
  }
  // The id of the token that ends at `node`, -1 if none does.
  int32_t id(uint32_t node) const { return nodes_[node].id; }

 private:
  struct Node {
    int32_t id = -1;
    uint32_t first_child = 0;
    uint32_t num_children = 0;
  };
  std::vector<Node> nodes_{1};
  std::vector<uint8_t> labels_{0};  // by node
};

}  // namespace strata::text
