// Breadth-first building, so that a node's children get consecutive numbers.
#include "strata/text/prefix_trie.h"

#include <algorithm>
#include <deque>

namespace strata::text {

PrefixTrie::PrefixTrie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::erase_if(tokens, [](const auto& token) { return token.first.empty(); });
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Task {
    uint32_t node;
    size_t begin, end, depth;  // tokens [begin, end) share their first `depth` bytes
  };
  std::deque<Task> tasks{{kRoot, 0, tokens.size(), 0}};
  for (; !tasks.empty(); tasks.pop_front()) {
    Task task = tasks.front();
    while (task.begin < task.end && tokens[task.begin].first.size() == task.depth) {
      nodes_[task.node].id = tokens[task.begin++].second;
    }
    nodes_[task.node].first_child = static_cast<uint32_t>(nodes_.size());
    while (task.begin < task.end) {
      const char label = tokens[task.begin].first[task.depth];
      size_t end = task.begin;
      while (end < task.end && tokens[end].first[task.depth] == label) ++end;
      tasks.push_back({static_cast<uint32_t>(nodes_.size()), task.begin, end, task.depth + 1});
      nodes_.emplace_back();
      labels_.push_back(static_cast<uint8_t>(label));
      ++nodes_[task.node].num_children;
      task.begin = end;
    }
  }
}

}  // namespace strata::text
