// Remembers the tokens of short pieces: natural text repeats its words, and a hit costs a tenth of
// the merges. Fixed size; a new piece displaces the one in its slot.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "strata/text/model.h"

namespace strata::text {

// Threads: all functions may be called at the same time. A reader writes nothing that others read,
// so that hits cost the same however many threads there are; one that meets a writer finds nothing.
class PieceCache {
 public:
  PieceCache();
  // Appends the remembered tokens of `piece`; false when there are none.
  bool find(std::string_view piece, std::vector<ModelToken>& out) const;
  void store(std::string_view piece, const ModelToken* tokens, size_t count);

 private:
  static constexpr size_t kSlots = size_t{1} << 15;
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kMaxTokens = 7;
  struct Content {
    uint8_t num_bytes, num_tokens;
    char bytes[kMaxBytes];
    int32_t ids[kMaxTokens];
    uint8_t begins[kMaxTokens], ends[kMaxTokens];
  };
  static constexpr size_t kWords = (sizeof(Content) + 7) / 8;
  struct Slot {
    std::atomic<uint64_t> version = 0;  // odd: being written
    std::array<std::atomic<uint64_t>, kWords> words = {};
  };
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace strata::text
