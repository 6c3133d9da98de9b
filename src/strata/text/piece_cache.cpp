// Direct-mapped table with a few locks.
#include "strata/text/piece_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace strata::text {

PieceCache::PieceCache() : slots_(std::make_unique<Slot[]>(kSlots)) {}

bool PieceCache::find(std::string_view piece, std::vector<ModelToken>& out) const {
  if (piece.size() > kMaxBytes) return false;
  const uint64_t at = XXH3_64bits(piece.data(), piece.size()) % kSlots;
  const std::lock_guard lock(locks_[at % kLocks]);
  const Slot& slot = slots_[at];
  if (slot.num_bytes != piece.size() || std::memcmp(slot.bytes, piece.data(), piece.size()) != 0) {
    return false;
  }
  for (size_t i = 0; i < slot.num_tokens; ++i) {
    out.push_back({slot.ids[i], slot.begins[i], slot.ends[i]});
  }
  return true;
}

void PieceCache::store(std::string_view piece, const ModelToken* tokens, size_t count) {
  if (piece.empty() || piece.size() > kMaxBytes || count > kMaxTokens) return;
  const uint64_t at = XXH3_64bits(piece.data(), piece.size()) % kSlots;
  const std::lock_guard lock(locks_[at % kLocks]);
  Slot& slot = slots_[at];
  slot.num_bytes = static_cast<uint8_t>(piece.size());
  slot.num_tokens = static_cast<uint8_t>(count);
  std::memcpy(slot.bytes, piece.data(), piece.size());
  for (size_t i = 0; i < count; ++i) {
    slot.ids[i] = tokens[i].id;
    slot.begins[i] = static_cast<uint8_t>(tokens[i].begin);
    slot.ends[i] = static_cast<uint8_t>(tokens[i].end);
  }
}

}  // namespace strata::text
