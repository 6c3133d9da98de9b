// Oracle: the table written by hand.
#include "strata/train/setup/load_memory.h"

#include <gtest/gtest.h>

namespace strata::train {
namespace {

constexpr double kMb = 1 << 20;

LoadMemory rank_memory(double host, double device) {
  return {.host = {host * kMb, 20 * kMb, 30 * kMb, (host + 30) * kMb},
          .device = {device * kMb, 7 * kMb, 9 * kMb, (device + 9) * kMb}};
}

TEST(LoadMemory, HasARowOfHostAndDeviceForEachRank) {
  const std::vector<LoadMemory> ranks{rank_memory(926, 1), rank_memory(933, 2)};
  const auto lines = describe_load_memory(ranks, at::Device(at::kCUDA, 0));
  const std::vector<std::string> expected{
      "memory of loading, MB    before  consumed  peak during  total peak",
      "  CPU rank 0              926        20           30         956",
      "  GPU rank 0                1         7            9          10",
      "  CPU rank 1              933        20           30         963",
      "  GPU rank 1                2         7            9          11"};
  EXPECT_EQ(lines, expected);
}

TEST(LoadMemory, OfManyRanksTheRestIsTheLargest) {
  std::vector<LoadMemory> ranks(17, rank_memory(100, 5));
  ranks.back() = rank_memory(200, 6);
  const auto lines = describe_load_memory(ranks, at::Device(at::kCUDA, 0));
  ASSERT_EQ(lines.size(), 1u + 2 * 16 + 2);
  EXPECT_EQ(lines[33], "  most of 17              200        20           30         230");
  EXPECT_EQ(lines[34], "  GPU most                  6         7            9          15");
  const auto without = describe_load_memory(ranks, at::kCPU);
  EXPECT_EQ(without.size(), 1u + 16 + 2);
  EXPECT_EQ(without.back(), "  device      none: the CPU computes");
}

}  // namespace
}  // namespace strata::train
