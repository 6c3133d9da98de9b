// Oracle: values drawn by torch.Generator and numpy.random.default_rng.
#include "strata/data/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace strata::data {
namespace {

using ::testing::ElementsAre;

TEST(TorchGenerator, DrawsTheSequenceOfMt19937) {
  // The published test value of the algorithm: draw 10000 for seed 5489.
  TorchGenerator generator(5489);
  uint32_t draw = 0;
  for (int i = 0; i < 10000; ++i) draw = generator.next32();
  EXPECT_EQ(draw, 4123659995u);
}

TEST(TorchGenerator, PermutesAsRandperm) {
  EXPECT_THAT(TorchGenerator(42).randperm(10), ElementsAre(2, 6, 1, 8, 4, 5, 0, 9, 3, 7));
  EXPECT_THAT(TorchGenerator(43).randperm(10), ElementsAre(8, 4, 9, 0, 5, 1, 6, 7, 2, 3));
  EXPECT_THAT(TorchGenerator(1).randperm(1), ElementsAre(0));
  EXPECT_TRUE(TorchGenerator(1).randperm(0).empty());
}

TEST(TorchGenerator, UsesTheLow32BitsOfTheSeed) {
  EXPECT_EQ(TorchGenerator((uint64_t{7} << 32) + 42).randperm(10), TorchGenerator(42).randperm(10));
}

TEST(TorchGenerator, FillsUniformly) {
  TorchGenerator generator(42);
  for (const float expected : {0.3823f, 0.4150f, -0.1171f, 0.4593f}) {
    EXPECT_NEAR(generator.uniform(-0.5f, 0.5f), expected, 5e-5);
  }
}

TEST(TorchGenerator, Combines64BitsHighHalfFirst) {
  TorchGenerator halves(3);
  const uint64_t high = halves.next32();
  EXPECT_EQ(TorchGenerator(3).next64(), high << 32 | halves.next32());
}

TEST(NumpyGenerator, PermutesAsDefaultRng) {
  EXPECT_THAT(NumpyGenerator(42).permutation(10), ElementsAre(5, 6, 0, 7, 3, 2, 4, 9, 1, 8));
  EXPECT_THAT(NumpyGenerator(0).permutation(5), ElementsAre(2, 4, 3, 0, 1));
}

TEST(NumpyGenerator, TakesSeedsOfTwoWords) {
  EXPECT_THAT(NumpyGenerator((uint64_t{1} << 40) + 7).permutation(6),
              ElementsAre(5, 4, 3, 1, 0, 2));
}

TEST(NumpyGenerator, PermutesEveryRowOnce) {
  std::vector<int64_t> order = NumpyGenerator(9).permutation(5000);
  std::sort(order.begin(), order.end());
  std::vector<int64_t> all(5000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order, all);
}

}  // namespace
}  // namespace strata::data
