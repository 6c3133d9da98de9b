// Oracle: inverse frequencies printed by transformers' modeling_rope_utils for the same settings.
#include "strata/nn/attention/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace strata::nn {
namespace {

void expect_values(const at::Tensor& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.numel(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_FLOAT_EQ(found[i].item<float>(), expected[i]) << i;
  }
}

TEST(Rope, Llama3Frequencies) {
  const RopeOptions options{.kind = RopeKind::kLlama3,
                            .theta = 5e5,
                            .head_dim = 16,
                            .max_position_embeddings = 131072,
                            .factor = 8.0,
                            .low_freq_factor = 1.0,
                            .high_freq_factor = 4.0,
                            .original_max_position_embeddings = 8192};
  expect_values(rope_inverse_frequencies(options, 0),
                {1.f, .193922758f, .0376060307f, .00729266508f, 5.24846022e-4f, 3.42810235e-5f,
                 6.64786967e-6f, 1.28917316e-6f});
}

TEST(Rope, BuffersAreRoundedAnglesAreNot) {
  RopeOptions options{.theta = 10000.0, .head_dim = 8, .buffer_type = at::kBFloat16};
  Rope rope(options);
  const at::Tensor positions = at::arange(1000);
  const at::Tensor rounded = rope_inverse_frequencies(options, 0).to(at::kBFloat16).to(at::kFloat);
  EXPECT_TRUE(at::equal(rope.tables(positions).sin,
                        (positions.to(at::kFloat).unsqueeze(1) * rounded.unsqueeze(0)).sin()));
  options.buffer_type = at::kFloat;
  Rope exact(options);
  EXPECT_GT((exact.tables(positions).sin - rope.tables(positions).sin).abs().max().item<float>(),
            0.01);
}

TEST(Rope, LinearDividesByTheFactor) {
  RopeOptions options{.theta = 10000.0, .head_dim = 4};
  const at::Tensor plain = rope_inverse_frequencies(options, 0);
  expect_values(plain, {1.f, 0.01f});
  options.kind = RopeKind::kLinear;
  options.factor = 4.0;
  EXPECT_TRUE(at::equal(rope_inverse_frequencies(options, 0), plain / 4.0));
}

TEST(Rope, DynamicGrowsBeyondTheLimitOnly) {
  RopeOptions options{.theta = 100.0, .head_dim = 4, .max_position_embeddings = 8};
  const at::Tensor plain = rope_inverse_frequencies(options, 0);
  options.kind = RopeKind::kDynamic;
  options.factor = 2.0;
  EXPECT_TRUE(at::equal(rope_inverse_frequencies(options, 8), plain));
  // Base 100 * (2 * 16 / 8 - 1)^2 = 900.
  expect_values(rope_inverse_frequencies(options, 16), {1.f, 1.f / 30.f});
  Rope rope(options);
  const at::Tensor far = at::arange(16);
  EXPECT_FLOAT_EQ(rope.tables(far).sin[1][1].item<float>(), std::sin(1.f / 30.f));
  const at::Tensor near = at::arange(8);
  EXPECT_FLOAT_EQ(rope.tables(near).sin[1][1].item<float>(), std::sin(0.1f));
}

TEST(Rope, YarnFrequencies) {
  RopeOptions options{.kind = RopeKind::kYarn,
                      .theta = 1e6,
                      .head_dim = 16,
                      .max_position_embeddings = 131072,
                      .factor = 4.0,
                      .original_max_position_embeddings = 32768,
                      .attention_factor = 1.25};
  expect_values(rope_inverse_frequencies(options, 0),
                {1.f, .17782794f, .03162278f, .00421756f, 5.00000024e-4f, 4.44569851e-05f,
                 7.90569356e-06f, 1.40585337e-06f});
  options.truncate = false;
  expect_values(rope_inverse_frequencies(options, 0),
                {1.f, .17782794f, .03162278f, .0055172704f, 6.07408001e-4f, 4.44569851e-05f,
                 7.90569356e-06f, 1.40585337e-06f});
  options.truncate = true;
  Rope rope(options);
  const at::Tensor positions = at::arange(5), fewer = at::arange(2);
  for (const at::Tensor& some : {positions, fewer}) {
    const RopeTables& tables = rope.tables(some);
    EXPECT_FLOAT_EQ(tables.cos[1][0].item<float>(), 1.25f * std::cos(1.f));
    EXPECT_FLOAT_EQ(tables.sin[1][0].item<float>(), 1.25f * std::sin(1.f));
  }
}

TEST(Rope, LongropeTakesTheLongFactorsBeyondTheOriginalLength) {
  const RopeOptions options{.kind = RopeKind::kLongrope,
                            .theta = 100.0,
                            .head_dim = 4,
                            .original_max_position_embeddings = 8,
                            .short_factors = {1.0, 2.0},
                            .long_factors = {4.0, 5.0},
                            .buffer_type = at::kBFloat16};
  expect_values(rope_inverse_frequencies(options, 8), {1.f, 0.05f});
  expect_values(rope_inverse_frequencies(options, 9), {0.25f, 0.02f});
  Rope rope(options);
  const at::Tensor all = at::arange(9), start = at::arange(8), part = at::arange(2);
  const float rounded = at::tensor(0.02f).to(at::kBFloat16).to(at::kFloat).item<float>();
  EXPECT_FLOAT_EQ(rope.tables(all).sin[1][0].item<float>(), std::sin(0.25f));
  EXPECT_FLOAT_EQ(rope.tables(all).sin[1][1].item<float>(), std::sin(rounded));
  EXPECT_FLOAT_EQ(rope.tables(start).sin[1][0].item<float>(), std::sin(1.f));
  EXPECT_FLOAT_EQ(rope.tables(part, /*text_length=*/9).sin[1][0].item<float>(), std::sin(0.25f));
}

TEST(Rope, TablesFollowChangedPositions) {
  Rope rope(RopeOptions{.theta = 100.0, .head_dim = 4});
  at::Tensor positions = at::arange(3);
  EXPECT_FLOAT_EQ(rope.tables(positions).cos[2][0].item<float>(), std::cos(2.f));
  positions.add_(1);
  EXPECT_FLOAT_EQ(rope.tables(positions).cos[2][0].item<float>(), std::cos(3.f));
}

TEST(Rope, TablesStayInTheirPlaceUnlessSomebodyHoldsThem) {
  Rope rope(RopeOptions{.theta = 100.0, .head_dim = 4});
  const at::Tensor first = at::arange(5), shorter = at::arange(7, 10), last = at::arange(4);
  const void* place = rope.tables(first).cos.const_data_ptr();
  EXPECT_EQ(rope.tables(shorter).cos.const_data_ptr(), place);
  EXPECT_FLOAT_EQ(rope.tables(shorter).cos[2][0].item<float>(), std::cos(9.f));
  EXPECT_FLOAT_EQ(rope.tables(shorter).sin[2][0].item<float>(), std::sin(9.f));
  const RopeTables held = rope.tables(first);
  EXPECT_NE(rope.tables(last).cos.const_data_ptr(), held.cos.const_data_ptr());
  EXPECT_FLOAT_EQ(held.cos[4][0].item<float>(), std::cos(4.f));
  EXPECT_FLOAT_EQ(rope.tables(last).sin[3][0].item<float>(), std::sin(3.f));
}

}  // namespace
}  // namespace strata::nn
