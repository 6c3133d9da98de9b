// Oracle: XXH3-64 of each block on its own, however the bytes are cut on their way.
#include "strata/checkpoint/block_sums.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "strata/checkpoint/manifest.h"

namespace strata::checkpoint {
namespace {

TEST(BlockSums, AreThoseOfEachBlockHoweverTheBytesAreCut) {
  std::mt19937 random(7);
  for (const size_t size : {0, 1, 99, 100, 101, 1000, 1234}) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    std::string expected;
    for (size_t at = 0; at < size; at += 100) {
      expected += checksum(bytes.data() + at, std::min<size_t>(100, size - at));
    }
    ASSERT_EQ(expected.size(), num_blocks(size, 100) * kSumDigits);
    for (const size_t cut : {1, 33, 100, 250, 5000}) {
      BlockSums sums(100);
      for (size_t at = 0; at < size; at += cut) {
        sums.update(std::span(bytes).subspan(at, std::min(cut, size - at)));
      }
      EXPECT_EQ(sums.take(), expected) << size << " in parts of " << cut;
    }
  }
}

TEST(BlockSizes, GrowWithTheCheckpointSoThatTheListStaysShort) {
  const BlockSizes sizes;
  EXPECT_EQ(sizes.block_bytes(0), sizes.least_bytes);
  for (const uint64_t bytes :
       {uint64_t{1} << 30, uint64_t{84} << 30, uint64_t{5} << 40, ~uint64_t{0} / 2}) {
    const uint64_t block = sizes.block_bytes(bytes);
    EXPECT_GE(block, sizes.least_bytes);
    EXPECT_LE(bytes / block, sizes.most_blocks);
    EXPECT_EQ(block & (block - 1), 0U) << "a power of two";
  }
}

}  // namespace
}  // namespace strata::checkpoint
