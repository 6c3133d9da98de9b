// Pair of token ids -> rank and result of a BPE merge: a flat hash table, since every merge step of
// every new word looks up two pairs.
#pragma once

#include <cstdint>
#include <vector>

namespace strata::text {

struct Merge {
  uint32_t rank = UINT32_MAX;  // UINT32_MAX: the pair does not merge
  int32_t result = -1;
};

class MergeTable {
 public:
  explicit MergeTable(size_t num_merges) {
    size_t size = 16;
    while (size < num_merges * 2) size *= 2;
    slots_.resize(size);
  }
  // A pair given again takes the new rank.
  void insert(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[locate(key_of(left, right))];
    slot.key = key_of(left, right);
    slot.merge = merge;
  }
  Merge find(int32_t left, int32_t right) const {
    return slots_[locate(key_of(left, right))].merge;
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t locate(uint64_t key) const {
    uint64_t hash = key * 0x9E3779B97F4A7C15ull;
    size_t at = (hash ^ hash >> 29) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  std::vector<Slot> slots_;
};

}  // namespace strata::text
