// Remembers the tokens of short pieces: natural text repeats its words, and a hit costs a tenth of
// the merges. Fixed size; a new piece displaces the one in its slot.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "strata/text/model.h"

namespace strata::text {

// Threads: all functions may be called at the same time.
class PieceCache {
 public:
  PieceCache();
  // Appends the remembered tokens of `piece`; false when there are none.
  bool find(std::string_view piece, std::vector<ModelToken>& out) const;
  void store(std::string_view piece, const ModelToken* tokens, size_t count);

 private:
  static constexpr size_t kSlots = size_t{1} << 15;
  static constexpr size_t kLocks = 64;
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kMaxTokens = 7;
  struct Slot {
    uint8_t num_bytes = 0, num_tokens = 0;
    char bytes[kMaxBytes];
    int32_t ids[kMaxTokens];
    uint8_t begins[kMaxTokens], ends[kMaxTokens];
  };
  std::unique_ptr<Slot[]> slots_;
  mutable std::array<std::mutex, kLocks> locks_;
};

}  // namespace strata::text
