#include "strata/checkpoint/block_sums.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace strata::checkpoint {

uint64_t BlockSizes::block_bytes(uint64_t checkpoint_bytes) const {
  const uint64_t enough = std::max(checkpoint_bytes / most_blocks, least_bytes);
  return std::bit_ceil(enough);
}

void BlockSums::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto some = bytes.first(std::min<uint64_t>(bytes.size(), block_bytes_ - filled_));
    sum_.update(some);
    filled_ += some.size();
    bytes = bytes.subspan(some.size());
    if (filled_ == block_bytes_) end_block();
  }
}

void BlockSums::end_block() {
  digits_ += sum_.text_64();
  sum_.reset();
  filled_ = 0;
}

std::string BlockSums::take() {
  if (filled_ > 0) end_block();
  return std::move(digits_);
}

}  // namespace strata::checkpoint
