// Direct-mapped table; each slot has a version that tells a reader whether it was written
// meanwhile.
#include "strata/text/piece_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstring>

namespace strata::text {

PieceCache::PieceCache() : slots_(std::make_unique<Slot[]>(kSlots)) {}

bool PieceCache::find(std::string_view piece, std::vector<ModelToken>& out) const {
  if (piece.size() > kMaxBytes) return false;
  const Slot& slot = slots_[XXH3_64bits(piece.data(), piece.size()) % kSlots];
  const uint64_t version = slot.version.load(std::memory_order_acquire);
  if (version % 2 == 1) return false;
  // A word that a writer put there brings the writer's version with it (release, acquire).
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_acquire) != version) return false;
  Content content;
  std::memcpy(&content, words.data(), sizeof(content));
  if (content.num_bytes != piece.size() ||
      std::memcmp(content.bytes, piece.data(), piece.size()) != 0) {
    return false;
  }
  for (size_t i = 0; i < content.num_tokens; ++i) {
    out.push_back({content.ids[i], content.begins[i], content.ends[i]});
  }
  return true;
}

void PieceCache::store(std::string_view piece, const ModelToken* tokens, size_t count) {
  if (piece.empty() || piece.size() > kMaxBytes || count > kMaxTokens) return;
  Content content;
  content.num_bytes = static_cast<uint8_t>(piece.size());
  content.num_tokens = static_cast<uint8_t>(count);
  std::memset(content.bytes, 0, sizeof(content.bytes));
  std::memcpy(content.bytes, piece.data(), piece.size());
  for (size_t i = 0; i < kMaxTokens; ++i) {
    content.ids[i] = i < count ? tokens[i].id : 0;
    content.begins[i] = i < count ? static_cast<uint8_t>(tokens[i].begin) : 0;
    content.ends[i] = i < count ? static_cast<uint8_t>(tokens[i].end) : 0;
  }
  std::array<uint64_t, kWords> words = {};
  std::memcpy(words.data(), &content, sizeof(content));

  Slot& slot = slots_[XXH3_64bits(piece.data(), piece.size()) % kSlots];
  uint64_t version = slot.version.load(std::memory_order_relaxed);
  // Who comes second leaves the slot to the first.
  if (version % 2 == 1 ||
      !slot.version.compare_exchange_strong(version, version + 1, std::memory_order_acq_rel)) {
    return;
  }
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.version.store(version + 2, std::memory_order_release);
}

}  // namespace strata::text
