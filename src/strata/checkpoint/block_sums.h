// Checksums of the blocks of a piece, by which a part of it is proved without the rest. Owns: where
// blocks end, and their sums as the bytes come by. Never: files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "strata/base/xxh3.h"

namespace strata::checkpoint {

// How large the blocks of a checkpoint are: a reader takes up to two more than it wants of a piece,
// and every reader the list of all.
struct BlockSizes {
  uint64_t least_bytes = uint64_t{64} << 10;
  uint64_t most_blocks = uint64_t{1} << 19;  // of a whole checkpoint: 8 MiB of digits

  // The same on all ranks that say the same of the whole.
  uint64_t block_bytes(uint64_t checkpoint_bytes) const;
};

// XXH3-64 as this many digits for each block.
inline constexpr size_t kSumDigits = 16;
// Blocks of `size_bytes`, the last of which may be shorter. Requires: block_bytes > 0.
constexpr uint64_t num_blocks(uint64_t size_bytes, uint64_t block_bytes) {
  return size_bytes / block_bytes + (size_bytes % block_bytes != 0 ? 1 : 0);
}

// Checksums of bytes that arrive in parts of any size. Requires: block_bytes > 0.
class BlockSums {
 public:
  explicit BlockSums(uint64_t block_bytes) : block_bytes_(block_bytes) {}

  void update(std::span<const std::byte> bytes);
  // The digits of all blocks, one after the other; none of no bytes. No more may come.
  std::string take();

 private:
  void end_block();

  uint64_t block_bytes_;
  uint64_t filled_ = 0;  // of the block that is open
  Xxh3 sum_;
  std::string digits_;
};

}  // namespace strata::checkpoint
