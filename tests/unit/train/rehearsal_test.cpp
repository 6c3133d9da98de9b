// Oracle: a walk over every batch that the plan holds.
#include "strata/train/loop/rehearsal.h"

#include <gtest/gtest.h>

namespace strata::train {
namespace {

data::TokenStore rows_of_lengths(int64_t rows) {
  data::Dataset dataset;
  for (int64_t i = 0; i < rows; ++i) {
    data::Example example;
    example.ids.resize(static_cast<size_t>(1 + i * 37 % 23));
    dataset.rows.push_back(example);
  }
  return data::TokenStore(std::move(dataset));
}

TEST(LongestTrainingBatch, IsTheLongestOfTheRemainingOnes) {
  const data::TokenStore dataset = rows_of_lengths(29);
  for (int world : {1, 2, 3}) {
    for (int64_t first_step : {0, 3}) {
      const data::BatchSampler sampler(29, {.batch_size = 2, .world_size = world, .seed = 7});
      config::TrainConfig config;
      config.gradient_accumulation_steps = 2;
      config.max_steps = 9;
      const StepPlan plan = plan_steps(config, sampler.batches_per_rank());
      for (int rank = 0; rank < world; ++rank) {
        int64_t longest = 0;
        for (int64_t step = first_step; step < plan.max_steps; ++step) {
          const auto window = plan.window(step);
          for (int64_t i = window.first; i < window.first + window.count; ++i) {
            int64_t tokens = 0;
            for (int64_t row : sampler.batch(window.epoch, rank, i)) {
              tokens += static_cast<int64_t>(dataset[static_cast<size_t>(row)].ids.size());
            }
            longest = std::max(longest, tokens);
          }
        }
        const LongestBatch found = longest_training_batch(dataset, sampler, plan, rank, first_step);
        EXPECT_EQ(found.num_tokens, longest);
        int64_t sum = 0;
        for (int64_t row : found.rows) {
          sum += static_cast<int64_t>(dataset[static_cast<size_t>(row)].ids.size());
        }
        EXPECT_EQ(sum, longest);
      }
    }
  }
}

// Of rated rows the answers share the pass that learns; those of others run forward alone.
TEST(LongestTrainingBatch, LooksAtOwnAnswers) {
  data::Dataset dataset;
  for (const auto& [own, other] : {std::pair(5, 50), {9, 4}, {3, 60}}) {
    data::Example row;
    row.ids.resize(static_cast<size_t>(own + other));
    row.lengths = {own, other};
    row.rating = data::Rating::kDesirable;
    dataset.rows.push_back(row);
  }
  config::TrainConfig config;
  config.max_steps = 3;
  const data::BatchSampler sampler(3, {.batch_size = 1, .seed = 7, .strategy = "sequential"});
  const LongestBatch found =
      longest_training_batch(data::TokenStore(std::move(dataset)), sampler,
                             plan_steps(config, sampler.batches_per_rank()), 0, 0);
  EXPECT_EQ(found.rows, std::vector<int64_t>{1});
  EXPECT_EQ(found.num_tokens, 9);
}

}  // namespace
}  // namespace strata::train
