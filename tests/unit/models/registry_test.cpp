// Oracle: the defaults of transformers' GPT2Config, OPTConfig, BertConfig, BartConfig and
// DebertaV2Config, the config.json of StarCoder and of roberta-base, which serves texts of 512
// tokens.
#include "strata/models/registry.h"

#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::models {
namespace {

TEST(Registry, FamiliesWithARowForEachPositionTellHowMany) {
  const auto table_of = [](const char* config) {
    return position_table(parse_json(config, "config.json"));
  };
  const auto gpt2 = table_of(R"({"model_type": "gpt2"})");
  ASSERT_TRUE(gpt2);
  EXPECT_EQ(gpt2->num_positions, 1024);
  EXPECT_STREQ(gpt2->key, "n_positions");
  const auto star_coder = table_of(R"({"model_type": "gpt_bigcode", "n_positions": 8192})");
  ASSERT_TRUE(star_coder);
  EXPECT_EQ(star_coder->num_positions, 8192);
  const auto opt = table_of(R"({"model_type": "opt"})");
  ASSERT_TRUE(opt);
  EXPECT_EQ(opt->num_positions, 2048);
  EXPECT_STREQ(opt->key, "max_position_embeddings");
  const auto bert = table_of(R"({"model_type": "bert"})");
  ASSERT_TRUE(bert);
  EXPECT_EQ(bert->num_positions, 512);
  const auto roberta = table_of(
      R"({"model_type": "roberta", "max_position_embeddings": 514, "type_vocab_size": 1})");
  ASSERT_TRUE(roberta);
  EXPECT_EQ(roberta->num_positions, 512);
  const auto bart = table_of(R"({"model_type": "bart"})");
  ASSERT_TRUE(bart);
  EXPECT_EQ(bart->num_positions, 1024);
  const auto deberta = table_of(R"({"model_type": "deberta-v2"})");
  ASSERT_TRUE(deberta);
  EXPECT_EQ(deberta->num_positions, 512);
  EXPECT_FALSE(table_of(R"({"model_type": "deberta-v2", "position_biased_input": false})"));
  EXPECT_FALSE(table_of(R"({"model_type": "llama", "max_position_embeddings": 4096})"));
  EXPECT_FALSE(table_of(R"({"model_type": "unheard_of"})"));
  EXPECT_FALSE(table_of("{}"));
}

// Tokens that see those behind them, as transformers' masks have it.
TEST(Registry, RefusesADecoderWithoutCausalAttention) {
  const auto create = [](const char* config) {
    return create_model(parse_json(config, "config.json"), {});
  };
  EXPECT_THROW(create(R"({"model_type": "llama", "is_causal": false})"), ConfigError);
  EXPECT_NO_THROW(create(R"({"model_type": "llama", "is_causal": true})"));
}

}  // namespace
}  // namespace strata::models
