// Oracle: names and refusals of PEFT's ParamWrapper and of its reading of fused experts.
#include "strata/adapters/target_parameters.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/adapters/expert_targets.h"
#include "strata/adapters/target_layers.h"
#include "strata/base/error.h"
#include "tiny_models.h"

namespace strata::adapters {
namespace {

using strata::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

LoraOptions parameters(std::vector<std::string> names) {
  LoraOptions options;
  options.target_parameters = std::move(names);
  return options;
}

std::vector<std::string> found(const LoraOptions& options) {
  const auto model = tiny_gpt_oss();
  std::vector<std::string> names;
  for (const nn::ExpertParameter* each : find_target_parameters(options, *model)) {
    names.push_back(each->name);
  }
  return names;
}

TEST(BranchPaths, GateAndUpAreWrappedFirst) {
  EXPECT_THAT(
      branch_paths({"m.0.experts.down_proj", "m.0.experts.gate_up_proj"}),
      ElementsAre("base_model.model.m.0.experts", "base_model.model.m.0.experts.base_layer"));
}

TEST(BranchPaths, AModulesOnlyParameterIsNotWrapped) {
  EXPECT_THAT(branch_paths({"m.0.experts.down_proj", "m.1.experts.gate_up_proj"}),
              ElementsAre("base_model.model.m.0.experts", "base_model.model.m.1.experts"));
}

TEST(TargetParameters, AreNamedByTheirEnds) {
  EXPECT_THAT(found(parameters({"experts.down_proj"})), SizeIs(3));
  EXPECT_THAT(found(parameters({"1.mlp.experts.down_proj"})),
              ElementsAre("model.layers.1.mlp.experts.down_proj"));
  EXPECT_THAT(found(LoraOptions{}), SizeIs(0));
}

TEST(TargetParameters, WhatIsNoneIsRefused) {
  EXPECT_THAT(message_of<ConfigError>([] { found(parameters({"nosuch"})); }),
              StartsWith("target_parameters: found no parameter matching [nosuch], expected some "
                         "of experts.down_proj, experts.gate_up_proj"));
  EXPECT_THAT(message_of<ConfigError>([] { found(parameters({"q_proj.weight"})); }),
              HasSubstr("expected the matrices of experts"));
  const auto model = tiny_llama();
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { find_target_parameters(parameters({"experts.down_proj"}), *model); }),
              HasSubstr("for a model without parameters of experts"));
}

// As PEFT's ParamWrapper.
TEST(TargetParameters, SettingsThatPeftRefusesBesideThem) {
  using O = LoraOptions;
  const std::pair<const char*, std::function<void(O&)>> rows[] = {
      {"lora_dropout: found 0.5", [](O& o) { o.dropout = 0.5; }},
      {"use_dora: found true", [](O& o) { o.use_dora = true; }},
      {"lora_bias: found true", [](O& o) { o.lora_bias = true; }},
      {"init_lora_weights: found pissa", [](O& o) { o.init = "pissa"; }},
      {"modules_to_save: found \"model.layers.0.", [](O& o) { o.modules_to_save = {"mlp"}; }}};
  for (const auto& [message, change] : rows) {
    LoraOptions options = parameters({"experts.down_proj"});
    change(options);
    EXPECT_THAT(message_of<ConfigError>([&] { found(options); }), StartsWith(message));
  }
  LoraOptions options = parameters({"experts.down_proj"});
  options.init = "gaussian";
  options.use_rslora = true;
  EXPECT_THAT(found(options), SizeIs(3));
}

TEST(TargetParameters, RowsOfABranchAreThoseOfAllExperts) {
  const auto model = tiny_gpt_oss();
  LoraOptions options = parameters({"experts.down_proj"});
  options.r = 3;
  options.alpha = 6;
  const auto targets = find_target_parameters(options, *model);
  attach_branches(targets, options);
  // Two experts; down makes 20 of 28.
  EXPECT_THAT(targets[0]->branch->a.shape(), ElementsAre(6, 28));
  EXPECT_THAT(targets[0]->branch->b.shape(), ElementsAre(20, 6));
  EXPECT_EQ(targets[0]->branch->scaling, 2.0);
  EXPECT_EQ(targets[0]->branch->a.name(),
            "base_model.model.model.layers.0.mlp.experts.lora_A.weight");
  options.r = 21;
  EXPECT_THAT(message_of<ConfigError>([&] { attach_branches(targets, options); }),
              HasSubstr("whose matrices are 28 by 20, expected at most 20"));
}

// Layers of experts by their names: what is one parameter in transformers.
TEST(ExpertTargets, WhatPeftLoadsOfThem) {
  using O = LoraOptions;
  const std::pair<const char*, std::function<void(O&)>> rows[] = {
      {"lora_dropout: found 0.5", [](O& o) { o.dropout = 0.5; }},
      {"use_rslora: found true", [](O& o) { o.use_rslora = true; }},
      {"init_lora_weights: found olora", [](O& o) { o.init = "olora"; }},
      {"rank_pattern: found a rank",
       [](O& o) {
         o.rank_pattern = {{"w1", 2}};
       }},
      {"alpha_pattern: found a value",
       [](O& o) {
         o.alpha_pattern = {{"w1", 2}};
       }},
      {"target_modules: found 2 of 4 layers that are one parameter in transformers",
       [](O& o) { o.target_modules = {"w1"}; }},
  };
  const auto model = tiny_mixtral();
  const auto check = [&](const LoraOptions& options) {
    require_loadable_on_experts(options, find_targets(options, *model).layers, *model);
  };
  LoraOptions good;
  good.target_modules = {"w1", "w2", "w3"};
  EXPECT_NO_THROW(check(good));
  for (const auto& [message, change] : rows) {
    LoraOptions options = good;
    change(options);
    EXPECT_THAT(message_of<ConfigError>([&] { check(options); }), StartsWith(message));
    // Beside the experts all of it is allowed.
    if (options.target_modules.size() == 1) continue;
    options.target_modules = {"q_proj"};
    EXPECT_NO_THROW(check(options)) << message;
  }
}

TEST(ExpertTargets, OtherMethodsDoNotComputeOnThem) {
  using O = LoraOptions;
  const std::pair<const char*, std::function<void(O&)>> rows[] = {
      {"peft_type: found IA3", [](O& o) { o.method = Method::kIa3; }},
      {"peft_type: found VERA", [](O& o) { o.method = Method::kVera; }},
      {"use_dora: found true", [](O& o) { o.use_dora = true; }},
      {"lora_bias: found true", [](O& o) { o.lora_bias = true; }}};
  const auto model = tiny_mixtral();
  for (const auto& [message, change] : rows) {
    LoraOptions options;
    options.target_modules = {"w2"};
    change(options);
    const auto layers = find_targets(options, *model).layers;
    EXPECT_THAT(
        message_of<ConfigError>([&] { require_computed_on_experts(options, layers, *model); }),
        StartsWith(message));
  }
}

}  // namespace
}  // namespace strata::adapters
