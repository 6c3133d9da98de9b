// Oracle: values that torch 2.13 and transformers 5.23 give for the same logits (tests/parity has
// the comparison at run time), and the definitions of the filters.
#include "strata/generate/sampler.h"

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::generate {
namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

std::vector<float> filtered(const std::vector<float>& logits, const SamplingOptions& options,
                            const std::vector<int32_t>& ids = {}) {
  const at::Tensor scores = filter_logits(at::tensor(logits), ids, options).contiguous();
  const float* data = scores.const_data_ptr<float>();
  return {data, data + scores.numel()};
}

TEST(FilterLogits, GreedyLeavesLogitsAsTheyAre) {
  EXPECT_EQ(filtered({1, 3, 2}, {.temperature = 0.5, .top_k = 1}), (std::vector<float>{1, 3, 2}));
}

TEST(FilterLogits, RepetitionPenaltyCountsEachTokenOnce) {
  EXPECT_EQ(filtered({4, -4, 2, -2}, {.repetition_penalty = 2}, {0, 1, 1, 0}),
            (std::vector<float>{2, -8, 2, -2}));
}

TEST(FilterLogits, TopKKeepsEqualsOfTheLastKept) {
  EXPECT_EQ(filtered({1, 5, 3, 3, 0}, {.do_sample = true, .top_k = 2}),
            (std::vector<float>{kOut, 5, 3, 3, kOut}));
}

TEST(FilterLogits, TopPKeepsTheFewestThatReachP) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits{std::log(0.5f), std::log(0.25f), std::log(0.125f),
                                  std::log(0.125f)};
  const auto kept = filtered(logits, {.do_sample = true, .top_k = 0, .top_p = 0.7});
  EXPECT_EQ(kept, (std::vector<float>{logits[0], logits[1], kOut, kOut}));
  const auto one = filtered(logits, {.do_sample = true, .top_k = 0, .top_p = 0.0});
  EXPECT_EQ(one, (std::vector<float>{logits[0], kOut, kOut, kOut}));
}

TEST(FilterLogits, MinPIsAPartOfTheLargestProbability) {
  const std::vector<float> logits{std::log(0.6f), std::log(0.25f), std::log(0.15f)};
  EXPECT_EQ(filtered(logits, {.do_sample = true, .top_k = 0, .min_p = 0.3}),
            (std::vector<float>{logits[0], logits[1], kOut}));
}

TEST(FilterLogits, TemperatureComesBeforeTopP) {
  const std::vector<float> logits{2, 1, 0};
  EXPECT_EQ(filtered(logits, {.do_sample = true, .temperature = 0.5, .top_k = 0, .top_p = 0.85}),
            (std::vector<float>{4, kOut, kOut}));
}

TEST(Sampler, GreedyTakesTheFirstOfEquals) {
  Sampler sampler({}, 0);
  EXPECT_EQ(sampler.next(at::tensor(std::vector<float>{0, 7, 7, 1}), {}), 1);
}

// torch.manual_seed(SEED); [torch.multinomial(softmax(arange(8) / 4), 1) for _ in range(10)]
std::vector<int32_t> draw(Sampler& sampler) {
  const at::Tensor logits = at::arange(8, at::kFloat) / 4;
  std::vector<int32_t> drawn;
  for (int i = 0; i < 10; ++i) drawn.push_back(sampler.next(logits, {}));
  return drawn;
}

TEST(Sampler, DrawsWhatTorchDraws) {
  Sampler zero({.do_sample = true}, 0), other({.do_sample = true}, 1234);
  EXPECT_EQ(draw(zero), (std::vector<int32_t>{6, 3, 6, 5, 7, 7, 4, 2, 4, 2}));
  EXPECT_EQ(draw(other), (std::vector<int32_t>{7, 3, 7, 1, 4, 5, 7, 6, 3, 3}));
}

TEST(Sampler, ResetStartsTheNumbersAnew) {
  Sampler sampler({.do_sample = true}, 7);
  const std::vector<int32_t> first = draw(sampler);
  EXPECT_NE(draw(sampler), first);
  sampler.reset();
  EXPECT_EQ(draw(sampler), first);
}

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
  Sampler sampler({}, 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(sampler.next(at::tensor(std::vector<float>{1, nan}), {}), FormatError);
  EXPECT_THROW(sampler.next(at::tensor(std::vector<float>{kOut, kOut}), {}), FormatError);
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  EXPECT_THROW(Sampler({.do_sample = true, .temperature = 0}, 0), ConfigError);
  EXPECT_THROW(Sampler({.top_k = -1}, 0), ConfigError);
  EXPECT_THROW(Sampler({.top_p = 1.5}, 0), ConfigError);
  EXPECT_THROW(Sampler({.min_p = -0.1}, 0), ConfigError);
  EXPECT_THROW(Sampler({.repetition_penalty = 0}, 0), ConfigError);
}

}  // namespace
}  // namespace strata::generate
