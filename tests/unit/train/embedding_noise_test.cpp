// Oracle: transformers' neftune_post_forward_hook over the batches that TRL's collator makes, by
// hand: alpha / sqrt(L * d) is the bound, of which the blocks know d.
#include "strata/train/loop/embedding_noise.h"

#include <gtest/gtest.h>

namespace strata::train {
namespace {

TEST(EmbeddingNoise, PaddedRowsHaveTheTokensOfTheLongest) {
  config::RunConfig config;
  const int64_t rows[] = {9, 25, 1};
  EXPECT_EQ(embedding_noise(config, rows), 0);
  config.train.neftune_noise_alpha = 5;
  EXPECT_DOUBLE_EQ(embedding_noise(config, rows), 1);
  config.data.packing_strategy = "bfd";  // without packing
  EXPECT_DOUBLE_EQ(embedding_noise(config, rows), 1);
}

TEST(EmbeddingNoise, PackedRowsLieSideBySideButForWrappedOnes) {
  config::RunConfig config;
  config.train.neftune_noise_alpha = 5;
  config.data.packing = true;
  const int64_t rows[] = {9, 16};
  for (const char* strategy : {"bfd", "bfd_split"}) {
    config.data.packing_strategy = strategy;
    EXPECT_DOUBLE_EQ(embedding_noise(config, rows), 1);
  }
  config.data.packing_strategy = "wrapped";
  EXPECT_DOUBLE_EQ(embedding_noise(config, rows), 1.25);
}

}  // namespace
}  // namespace strata::train
