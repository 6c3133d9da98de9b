// Oracle: what PEFT 0.21 adapts in a LlamaForCausalLM of the same sizes (get_peft_model).
#include "strata/adapters/target_layers.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/nn/embedding.h"
#include "strata/nn/linear.h"
#include "tiny_models.h"

namespace strata::adapters {
namespace {

using strata::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> targets(const LoraOptions& options) {
  const auto model = tiny_llama();
  std::vector<std::string> paths;
  for (const nn::Linear* layer : find_targets(options, *model).layers) {
    paths.push_back(layer->path());
  }
  return paths;
}

LoraOptions listing(std::vector<std::string> names) {
  LoraOptions options;
  options.target_modules = std::move(names);
  return options;
}

LoraOptions matching(std::string expression) {
  LoraOptions options;
  options.target_pattern = std::move(expression);
  return options;
}

TEST(TargetLayers, AListNamesEndsOfPaths) {
  EXPECT_THAT(targets(listing({"1.self_attn.q_proj", "down_proj"})),
              ElementsAre("model.layers.0.mlp.down_proj", "model.layers.1.self_attn.q_proj",
                          "model.layers.1.mlp.down_proj", "model.layers.2.mlp.down_proj"));
  // Not "_proj", which ends no segment, but what does is one.
  EXPECT_THAT(message_of<ConfigError>([] { targets(listing({"_proj"})); }),
              HasSubstr("target_modules: found no module matching [_proj], expected some of "
                        "down_proj, gate_proj, k_proj, lm_head,"));
}

TEST(TargetLayers, AnExpressionMatchesWholePaths) {
  EXPECT_THAT(targets(matching(R"(.*\.1\..*(q|v)_proj)")),
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"));
  EXPECT_THAT(message_of<ConfigError>([] { targets(matching("q_proj")); }),
              HasSubstr("found no module matching \"q_proj\""));
}

TEST(TargetLayers, AllLinearLeavesTheOutputLayerOut) {
  EXPECT_THAT(targets(matching("all-linear")), SizeIs(21));
  EXPECT_EQ(targets(matching("ALL-LINEAR")), targets(matching("all-linear")));
  EXPECT_THAT(targets(listing({"lm_head"})), ElementsAre("lm_head"));
}

TEST(TargetLayers, NothingSaidIsTheFamilysDefault) {
  EXPECT_EQ(targets(LoraOptions{}), targets(listing({"q_proj", "v_proj"})));
}

TEST(TargetLayers, LayersMayBeChosen) {
  LoraOptions options = listing({"q_proj", "v_proj"});
  options.layers_to_transform = {1};
  EXPECT_THAT(targets(options),
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"));
  options = listing({"q_proj"});
  options.layers_to_transform = {0, 2};
  options.layers_pattern = {"layers"};
  EXPECT_THAT(targets(options),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.2.self_attn.q_proj"));
}

TEST(TargetLayers, APathInFullIsTakenWhateverItsLayer) {
  LoraOptions options = listing({"model.layers.2.mlp.down_proj", "q_proj"});
  options.layers_to_transform = {0};
  EXPECT_THAT(targets(options),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.2.mlp.down_proj"));
}

TEST(TargetLayers, ExcludedModulesAreNone) {
  LoraOptions options = listing({"q_proj", "up_proj"});
  options.exclude_modules = {"0.self_attn.q_proj"};
  EXPECT_THAT(targets(options),
              ElementsAre("model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj",
                          "model.layers.1.mlp.up_proj", "model.layers.2.self_attn.q_proj",
                          "model.layers.2.mlp.up_proj"));
  options.exclude_modules.clear();
  options.exclude_pattern = ".*(q_proj|[12].*up_proj)";
  EXPECT_THAT(targets(options), ElementsAre("model.layers.0.mlp.up_proj"));
}

TEST(TargetLayers, WhatTrainsWholeHasNoBranch) {
  const auto model = tiny_llama();
  LoraOptions options = listing({"q_proj", "lm_head"});
  options.modules_to_save = {"lm_head"};
  EXPECT_THAT(targets(options), SizeIs(3));
  EXPECT_THAT(targets_that_train_whole(options, *model), ElementsAre("lm_head"));
  EXPECT_THAT(weights_to_save(options, *model), ElementsAre("lm_head.weight"));
}

TEST(TargetLayers, OnlyLoraAdaptsTheEmbedding) {
  const auto model = tiny_llama();
  LoraOptions options = listing({"embed_tokens"});
  EXPECT_EQ(find_targets(options, *model).embedding->path(), "model.embed_tokens");
  options.method = Method::kIa3;
  EXPECT_THAT(message_of<ConfigError>([&] { find_targets(options, *model); }),
              HasSubstr("found [embed_tokens] matching \"model.embed_tokens\", expected linear"));
  EXPECT_THAT(message_of<ConfigError>([] { targets(listing({"mlp"})); }),
              HasSubstr("found [mlp] matching \"model.layers.0.mlp\""));
}

// PEFT: from 20 names on, the file holds what is needed to tell them from the rest.
TEST(TargetLayers, LongListsAreShortenedInTheFile) {
  const auto model = tiny_llama();
  EXPECT_THAT(
      find_targets(matching("all-linear"), *model).list,
      ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
  EXPECT_THAT(find_targets(listing({"q_proj"}), *model).list, ElementsAre("q_proj"));
  EXPECT_THAT(find_targets(matching(".*q_proj"), *model).list, IsEmpty());
}

TEST(TargetLayers, MayTargetLooksAtThePathAlone) {
  EXPECT_TRUE(may_target(LoraOptions{}, "anything"));
  EXPECT_TRUE(may_target(matching("all-linear"), "anything"));
  EXPECT_TRUE(may_target(listing({"q_proj"}), "h.0.q_proj"));
  EXPECT_FALSE(may_target(listing({"q_proj"}), "h.0.k_proj"));
  EXPECT_FALSE(may_target(matching(".*q_proj"), "h.0.k_proj"));
}

TEST(TargetLayers, TheFirstPatternThatMatchesDecides) {
  LoraOptions options;
  options.r = 4;
  options.alpha = 6;
  options.rank_pattern = {{"1.self_attn.q_proj", 2}, {"q_proj", 3}};
  options.alpha_pattern = {{"k_proj", 10}};
  const auto scaling = [&](const std::string& path) {
    return scaling_of(options, path, rank_of(options, path));
  };
  const std::string q0 = "model.layers.0.self_attn.q_proj", q1 = "model.layers.1.self_attn.q_proj",
                    k1 = "model.layers.1.self_attn.k_proj";
  EXPECT_EQ(rank_of(options, q0), 3);
  EXPECT_EQ(rank_of(options, q1), 2);
  EXPECT_EQ(rank_of(options, k1), 4);
  EXPECT_EQ(scaling(q0), 2.0);
  EXPECT_EQ(scaling(q1), 3.0);
  EXPECT_EQ(scaling(k1), 2.5);
  // A key is an expression at the end of a path, behind a dot.
  EXPECT_EQ(rank_of(options, "xq_proj"), 4);
  EXPECT_EQ(rank_of(options, "q_proj"), 3);
}

TEST(TargetLayers, RankStabilisedScalesByTheRoot) {
  LoraOptions options;
  options.alpha = 6;
  options.use_rslora = true;
  EXPECT_EQ(scaling_of(options, "q_proj", 4), 3.0);
  EXPECT_EQ(scaling_of(options, "q_proj", 2), 4.242640687119285);
}

TEST(TargetLayers, SavedModulesAreMatchedByTheEndOfTheirText) {
  const auto model = tiny_llama();
  LoraOptions options;
  options.modules_to_save = {"layernorm"};
  EXPECT_THAT(weights_to_save(options, *model), SizeIs(6));
  options.modules_to_save = {"nosuch"};
  EXPECT_THAT(message_of<ConfigError>([&] { weights_to_save(options, *model); }),
              HasSubstr("modules_to_save: found no module whose path ends with \"nosuch\""));
}

TEST(LayerNumbers, TheFirstNumberWithSomethingBehindIt) {
  const LayerNumbers any({});
  EXPECT_EQ(any.of("model.layers.11.mlp.3.up_proj"), 11);
  EXPECT_EQ(any.of("model.layers.11"), std::nullopt);
  EXPECT_EQ(any.of("lm_head"), std::nullopt);
  // A number needs a segment and another before it.
  EXPECT_EQ(any.of("h.2.mlp"), std::nullopt);
  const LayerNumbers named({"experts", "layers"});
  EXPECT_EQ(named.of("model.layers.1.mlp.experts.4.up_proj"), 4);
  EXPECT_EQ(named.of("model.layers.1.mlp.up_proj"), 1);
  EXPECT_EQ(named.of("model.blocks.1.mlp.up_proj"), std::nullopt);
}

}  // namespace
}  // namespace strata::adapters
