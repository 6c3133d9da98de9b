// Oracle: the batches of transformers' Trainer with accelerate's BatchSamplerShard.
#include "strata/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "strata/base/error.h"

namespace strata::data {
namespace {

using ::testing::ElementsAre;
using Batches = std::vector<std::vector<int64_t>>;

Batches epoch_of(const BatchSampler& sampler, int64_t epoch, int rank) {
  Batches batches;
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    batches.push_back(sampler.batch(epoch, rank, i));
  }
  return batches;
}

struct Case {
  int64_t num_rows, batch_size;
  int world_size;
  std::vector<Batches> ranks;  // epoch 0, seed 42
};

TEST(BatchSampler, DealsTheGoldenBatches) {
  const std::vector<Case> cases = {
      {10, 2, 1, {{{2, 6}, {1, 8}, {4, 5}, {0, 9}, {3, 7}}}},
      {10, 2, 2, {{{2, 6}, {4, 5}, {3, 7}}, {{1, 8}, {0, 9}, {2, 6}}}},
      {10, 3, 2, {{{2, 6, 1}, {0, 9, 3}}, {{8, 4, 5}, {7, 2, 6}}}},
      {10, 4, 2, {{{2, 6, 1, 8}, {3, 7, 2, 6}}, {{4, 5, 0, 9}, {1, 8, 4, 5}}}},
      {10, 2, 4, {{{2, 6}, {3, 7}}, {{1, 8}, {2, 6}}, {{4, 5}, {1, 8}}, {{0, 9}, {4, 5}}}},
      {9, 2, 4, {{{6, 4}, {1, 6}}, {{0, 7}, {4, 0}}, {{5, 8}, {7, 5}}, {{3, 2}, {8, 3}}}},
      {3, 4, 2, {{{0, 2, 1, 0}}, {{2, 1, 0, 2}}}},
  };
  for (const Case& c : cases) {
    const BatchSampler sampler(
        c.num_rows, {.batch_size = c.batch_size, .world_size = c.world_size, .seed = 42});
    for (int rank = 0; rank < c.world_size; ++rank) {
      EXPECT_EQ(epoch_of(sampler, 0, rank), c.ranks[rank])
          << c.num_rows << ", " << c.batch_size << ", " << c.world_size << ", rank " << rank;
    }
  }
}

TEST(BatchSampler, ReshufflesEachEpochAndGoesBack) {
  const BatchSampler sampler(10, {.batch_size = 3, .world_size = 2, .seed = 42});
  EXPECT_EQ(epoch_of(sampler, 1, 0), (Batches{{8, 4, 9}, {6, 7, 2}}));
  EXPECT_EQ(epoch_of(sampler, 1, 1), (Batches{{0, 5, 1}, {3, 8, 4}}));
  EXPECT_THAT(sampler.batch(0, 0, 0), ElementsAre(2, 6, 1));
  // Resuming epoch 1 after one batch needs no state.
  EXPECT_THAT(BatchSampler(10, {.batch_size = 3, .world_size = 2, .seed = 42}).batch(1, 0, 1),
              ElementsAre(6, 7, 2));
}

TEST(BatchSampler, UsesTheSeedItIsGiven) {
  EXPECT_EQ(epoch_of(BatchSampler(10, {.batch_size = 2, .seed = 7}), 0, 0),
            (Batches{{5, 0}, {3, 4}, {1, 7}, {9, 6}, {8, 2}}));
}

TEST(BatchSampler, DropsTheLastRound) {
  const BatchSampler sampler(10, {.batch_size = 4, .world_size = 2, .seed = 42, .drop_last = true});
  EXPECT_EQ(epoch_of(sampler, 0, 0), (Batches{{2, 6, 1, 8}}));
  EXPECT_EQ(epoch_of(sampler, 0, 1), (Batches{{4, 5, 0, 9}}));
}

// accelerate leaves the loader of a single process as it is.
TEST(BatchSampler, LeavesTheLastBatchShortOnOneRank) {
  const BatchSampler sampler(10, {.batch_size = 4, .seed = 42});
  EXPECT_EQ(epoch_of(sampler, 0, 0), (Batches{{2, 6, 1, 8}, {4, 5, 0, 9}, {3, 7}}));
}

TEST(BatchSampler, IsSequentialOnRequest) {
  const BatchSampler sampler(5, {.batch_size = 2, .seed = 42, .strategy = "sequential"});
  EXPECT_EQ(epoch_of(sampler, 3, 0), (Batches{{0, 1}, {2, 3}, {4}}));
}

// A global batch is the same rows however many ranks share it (I7).
TEST(BatchSampler, GlobalBatchesDoNotDependOnTheWorldSize) {
  const BatchSampler alone(24, {.batch_size = 12, .seed = 5});
  for (const int world_size : {2, 3, 4}) {
    const BatchSampler shared(24,
                              {.batch_size = 12 / world_size, .world_size = world_size, .seed = 5});
    for (int64_t i = 0; i < alone.batches_per_rank(); ++i) {
      std::vector<int64_t> rows;
      for (int rank = 0; rank < world_size; ++rank) {
        for (const int64_t row : shared.batch(2, rank, i)) rows.push_back(row);
      }
      EXPECT_EQ(rows, alone.batch(2, 0, i));
    }
  }
}

// Of get_length_grouped_indices(lengths, rows, generator=torch.Generator().manual_seed(seed +
// epoch)).
TEST(BatchSampler, GroupsRowsByTheirLength) {
  struct Grouped {
    std::vector<int64_t> lengths;
    int64_t rows;
    std::vector<int64_t> order;
  };
  const std::vector<int64_t> ten = {5, 1, 9, 3, 9, 2, 7, 7, 4, 1};
  const std::vector<Grouped> cases = {
      {ten, 1, {2, 6, 8, 1, 4, 5, 0, 9, 7, 3}},
      {ten, 2, {2, 6, 8, 1, 4, 5, 0, 9, 7, 3}},
      {ten, 4, {2, 6, 8, 1, 4, 0, 5, 9, 7, 3}},
      {{3, 3, 3, 3, 3, 3, 3}, 2, {1, 6, 3, 5, 4, 0, 2}},
      {{1}, 3, {0}},
      {{12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 1, {0, 6, 8, 1, 2, 7, 4, 10, 11, 3, 5, 9}}};
  for (const Grouped& c : cases) {
    const auto count = static_cast<int64_t>(c.lengths.size());
    const BatchSampler sampler(count, {.batch_size = count,
                                       .seed = 42,
                                       .strategy = "group_by_length",
                                       .groups = {.lengths = c.lengths, .rows = c.rows}});
    EXPECT_EQ(sampler.batch(0, 0, 0), c.order) << count << " rows in groups of " << c.rows;
  }
  std::vector<int64_t> lengths(1000);
  for (int64_t row = 0; row < 1000; ++row) lengths[static_cast<size_t>(row)] = row * 7919 % 311;
  const BatchSampler many(1000, {.batch_size = 1000,
                                 .seed = 42,
                                 .strategy = "group_by_length",
                                 .groups = {.lengths = lengths, .rows = 3}});
  int64_t hash = 0;
  for (const int64_t row : many.batch(/*epoch=*/1, 0, 0)) hash = (hash * 31 + row) % 1'000'000'007;
  EXPECT_EQ(hash, 331822731);
}

TEST(BatchSampler, RefusesWhatCannotWork) {
  EXPECT_THROW(BatchSampler(0, {.batch_size = 1}), ConfigError);
  EXPECT_THROW(BatchSampler(1, {.batch_size = 0}), ConfigError);
  EXPECT_THROW(BatchSampler(1, {.batch_size = 1, .world_size = 0}), ConfigError);
  EXPECT_THROW(BatchSampler(1, {.batch_size = 1, .strategy = "batch_rebalance"}), ConfigError);
  EXPECT_THROW(BatchSampler(1, {.batch_size = 1, .strategy = "group_by_length"}), InternalError);
  EXPECT_THROW(BatchSampler(3, {.batch_size = 2, .world_size = 2, .drop_last = true}), ConfigError);
  EXPECT_THROW(
      BatchSampler(4, {.batch_size = 2, .world_size = 2, .drop_last = true}).batch(0, 2, 0),
      InternalError);
}

TEST(EvalSampler, GroupsRowsOfAboutTheSameLength) {
  // transformers' get_length_grouped_indices(lengths, 2,
  // generator=torch.Generator().manual_seed(42)).
  const EvalSampler sampler(10, 2, 2, /*drop_last=*/false,
                            {.lengths = {5, 1, 9, 3, 9, 2, 7, 7, 4, 1}, .seed = 42});
  EXPECT_THAT(sampler.batch(0, 0).rows, ElementsAre(2, 6));
  EXPECT_THAT(sampler.batch(1, 0).rows, ElementsAre(8, 1));
  EXPECT_THAT(sampler.batch(0, 2).rows, ElementsAre(7, 3));
  // What fills up are the rows of the first batches.
  EXPECT_THAT(sampler.batch(1, 2).rows, ElementsAre(2, 6));
  EXPECT_EQ(sampler.batch(1, 2).num_real, 0);
}

TEST(EvalSampler, MarksTheRowsThatOnlyFill) {
  const EvalSampler sampler(5, 2, 2);
  ASSERT_EQ(sampler.batches_per_rank(), 2);
  EXPECT_THAT(sampler.batch(0, 1).rows, ElementsAre(4, 0));
  EXPECT_EQ(sampler.batch(0, 1).num_real, 1);
  EXPECT_THAT(sampler.batch(1, 1).rows, ElementsAre(1, 2));
  EXPECT_EQ(sampler.batch(1, 1).num_real, 0);
}

TEST(EvalSampler, CountsEveryRowOnce) {
  for (const int64_t num_rows : {1, 2, 7, 12, 13}) {
    for (const int world_size : {1, 2, 3}) {
      const EvalSampler sampler(num_rows, 3, world_size);
      std::multiset<int64_t> seen;
      for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
        for (int rank = 0; rank < world_size; ++rank) {
          const EvalBatch batch = sampler.batch(rank, i);
          if (world_size > 1) {
            ASSERT_EQ(batch.rows.size(), 3u);
          }
          seen.insert(batch.rows.begin(), batch.rows.begin() + batch.num_real);
        }
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(num_rows));
      EXPECT_EQ(*seen.rbegin(), num_rows - 1);
      EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), seen.size());
    }
  }
}

}  // namespace
}  // namespace strata::data
