// Oracle: transformers' SeedOssConfig, ArceeConfig, ApertusConfig, Exaone4Config, Ernie4_5Config,
// HunYuanDenseV1Config and Ministral3Config: their defaults and what they make of older keys.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/models/llama/extended_layer.h"
#include "strata/models/llama/plain_mlp.h"
#include "strata/models/llama/relatives.h"

namespace strata::models {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

Json json_of(const std::string& text) { return parse_json(text, "config.json"); }

TEST(SeedOssConfig, Defaults) {
  const ExtendedConfig extended = parse_seed_oss_config(Json::object());
  const LlamaConfig& c = extended.llama;
  EXPECT_EQ(c.vocab_size, 155136);
  EXPECT_EQ(c.num_attention_heads, 80);
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.pad_token_id, 1);
  EXPECT_EQ(c.attention_dropout, 0.1);
  EXPECT_EQ(extended.residual_dropout, 0.1);
  EXPECT_TRUE(c.input_bias && !c.output_bias && !c.mlp_bias);
}

TEST(SeedOssConfig, NullMeansWhatRemains) {
  const LlamaConfig c =
      parse_seed_oss_config(
          json_of(R"({"hidden_size": 960, "head_dim": null, "num_key_value_heads": null})"))
          .llama;
  EXPECT_EQ(c.head_dim, 12);
  EXPECT_EQ(c.num_key_value_heads, 80);
}

TEST(ArceeConfig, Defaults) {
  const PlainMlpConfig c = parse_arcee_config(Json::object());
  EXPECT_EQ(c.activation, nn::Activation::kSquaredRelu);
  EXPECT_EQ(c.llama.hidden_size, 2560);
  EXPECT_EQ(c.llama.num_key_value_heads, 32);
  EXPECT_EQ(c.llama.rope.theta, 1e4);
  EXPECT_FALSE(c.llama.pad_token_id.has_value());
}

TEST(ApertusConfig, Defaults) {
  const PlainMlpConfig c = parse_apertus_config(Json::object());
  EXPECT_FALSE(c.activation.has_value());
  EXPECT_EQ(c.llama.rope.kind, nn::RopeKind::kLlama3);
  EXPECT_EQ(c.llama.rope.theta, 12e6);
  EXPECT_EQ(c.llama.rope.original_max_position_embeddings, 8192);
  EXPECT_EQ(c.llama.layer_norms[0].name, "attention_layernorm");
  EXPECT_EQ(c.llama.pad_token_id, 3);
}

TEST(ApertusConfig, ThetaAloneSaysNothing) {
  EXPECT_EQ(parse_apertus_config(json_of(R"({"rope_theta": 5e5})")).llama.rope.theta, 12e6);
  const PlainMlpConfig c = parse_apertus_config(
      json_of(R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2}})"));
  EXPECT_EQ(c.llama.rope.theta, 5e5);
  EXPECT_EQ(c.llama.rope.kind, nn::RopeKind::kLinear);
}

TEST(Exaone4Config, LayersWithoutAWindowHaveNoPositions) {
  const LlamaConfig c = parse_exaone4_config(json_of(R"({"num_hidden_layers": 4})"));
  EXPECT_THAT(c.windows, ElementsAre(4096, 4096, 4096, 0));
  EXPECT_THAT(c.rotates, ElementsAre(true, true, true, false));
}

TEST(Exaone4Config, WithoutWindowsAllTurn) {
  const LlamaConfig c =
      parse_exaone4_config(json_of(R"({"num_hidden_layers": 2, "sliding_window": null,
                  "layer_types": ["full_attention", "full_attention"]})"));
  EXPECT_TRUE(c.windows.empty() && c.rotates.empty());
}

TEST(Exaone4Config, ContradictionsAreNamed) {
  EXPECT_THROW(parse_exaone4_config(json_of(R"({"sliding_window_pattern": "LLLG"})")), FormatError);
  EXPECT_THROW(parse_exaone4_config(json_of(R"({"sliding_window_pattern": null})")), FormatError);
  EXPECT_THROW(parse_exaone4_config(json_of(R"({"num_hidden_layers": 1, "sliding_window": null,
                                                "layer_types": ["sliding_attention"]})")),
               FormatError);
  // As published: the pattern beside the list that it stands for.
  const LlamaConfig c = parse_exaone4_config(
      json_of(R"({"num_hidden_layers": 2, "sliding_window_pattern": "LG", "sliding_window": 7,
                  "layer_types": ["sliding_attention", "full_attention"]})"));
  EXPECT_THAT(c.windows, ElementsAre(7, 0));
}

TEST(Ernie45Config, Defaults) {
  const LlamaConfig c = parse_ernie4_5_config(json_of(R"({"attention_dropout": 0.3})"));
  EXPECT_EQ(c.attention_dropout, 0);  // of which the reference makes no use
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_EQ(c.rope.pairs, ops::RopePairs::kNeighbours);
  EXPECT_TRUE(c.tie_word_embeddings && !c.input_bias);
}

TEST(HunyuanConfig, AlphaStretchesTheBase) {
  const ExtendedConfig extended = parse_hunyuan_v1_dense_config(
      json_of(R"({"head_dim": 128, "rope_scaling": {"type": "dynamic", "alpha": 1000.0}})"));
  const LlamaConfig& c = extended.llama;
  EXPECT_EQ(c.rope.kind, nn::RopeKind::kDefault);
  EXPECT_DOUBLE_EQ(c.rope.theta, 1e4 * std::pow(1000.0, 128.0 / 126.0));
  EXPECT_EQ(c.rope.length_of_change(), 0);
  EXPECT_TRUE(extended.norms_turned_heads);
}

TEST(HunyuanConfig, WithoutAlphaTheLengthDoes) {
  const ExtendedConfig c = parse_hunyuan_v1_dense_config(
      json_of(R"({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "alpha": null}})"));
  EXPECT_EQ(c.llama.rope.kind, nn::RopeKind::kDynamic);
}

TEST(Ministral3Config, Defaults) {
  const ExtendedConfig extended = parse_ministral3_config(json_of(R"({"rope_theta": 7.0})"));
  const LlamaConfig& c = extended.llama;
  EXPECT_EQ(c.rope.kind, nn::RopeKind::kYarn);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.attention_factor, 1.0);
  EXPECT_EQ(extended.query_scale->beta, 0.1);
  EXPECT_EQ(extended.query_scale->length, 16384);
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_TRUE(c.windows.empty());
}

TEST(Ministral3Config, TheFactorOfQueriesMustBeThere) {
  EXPECT_THROW(parse_ministral3_config(
                   json_of(R"({"rope_parameters": {"rope_type": "yarn", "factor": 2}})")),
               FormatError);
  EXPECT_THROW(
      parse_ministral3_config(
          json_of(R"({"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}})")),
      FormatError);
  const ExtendedConfig extended = parse_ministral3_config(
      json_of(R"({"num_hidden_layers": 2, "sliding_window": 9, "rope_parameters":
                  {"rope_type": "default", "llama_4_scaling_beta": 0.2,
                   "original_max_position_embeddings": 8}})"));
  EXPECT_EQ(extended.query_scale->length, 8);
  EXPECT_THAT(extended.llama.windows, Each(9));
}

}  // namespace
}  // namespace strata::models
