// Oracle: the rule that every name in the settings means something in the model, name by name.
#include "strata/adapters/named_modules.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/models/registry.h"
#include "tiny_models.h"

namespace strata::adapters {
namespace {

using strata::testing::message_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Row {
  std::function<void(LoraOptions&)> change;
  const char* message;  // its beginning
};

LoraOptions good_options() {
  LoraOptions options;
  options.target_modules = {"q_proj", "up_proj"};
  return options;
}

TEST(NamedModules, EachNameThatMeansNothingIsRefused) {
  using O = LoraOptions;
  const Row rows[] = {
      {[](O& o) {
         o.target_modules = {"q_proj", "k_porj"};
       },
       "target_modules: found \"k_porj\", which matches none of this model's modules"},
      {[](O& o) { o.exclude_modules = {"q_prj"}; }, "exclude_modules: found \"q_prj\""},
      {[](O& o) { o.exclude_pattern = "q_proj"; }, "exclude_modules: found \"q_proj\""},
      {[](O& o) {
         o.rank_pattern = {{"q_proj", 2}, {"k_proj", 2}};
       },
       "rank_pattern: found \"k_proj\""},
      {[](O& o) {
         o.alpha_pattern = {{"3.self_attn.q_proj", 2}};
       },
       "alpha_pattern: found \"3.self_attn.q_proj\""},
      {[](O& o) {
         o.layers_to_transform = {0, 3};
       },
       "layers_to_transform: found 3, expected numbers of this model's layers, 0 to 2"},
      {[](O& o) {
         o.layers_to_transform = {0};
         o.layers_pattern = {"blocks"};
       },
       "layers_pattern: found \"blocks\", after which this model has no number"},
      {[](O& o) {
         o.method = Method::kIa3;
         o.feedforward_modules = {{"down_proj"}};
       },
       "feedforward_modules: found \"down_proj\""},
      {[](O& o) {
         o.method = Method::kIa3;
         o.feedforward_pattern = ".*down_proj";
       },
       "feedforward_modules: found \".*down_proj\""},
  };
  const auto model = tiny_llama();
  for (const Row& row : rows) {
    LoraOptions options = good_options();
    row.change(options);
    EXPECT_THAT(message_of<ConfigError>([&] { require_named_modules(options, *model); }),
                StartsWith(row.message));
  }
}

TEST(NamedModules, NamesThatMeanSomethingPass) {
  using O = LoraOptions;
  const std::function<void(O&)> changes[] = {
      [](O&) {},
      [](O& o) { o.exclude_modules = {"0.self_attn.q_proj"}; },
      [](O& o) { o.exclude_pattern = ".*\\.0\\..*"; },
      [](O& o) {
        o.rank_pattern = {{"2.self_attn.q_proj", 2}, {"(q|up)_proj", 3}};
      },
      [](O& o) {
        o.layers_to_transform = {2};
        o.layers_pattern = {"layers"};
      },
      [](O& o) {
        o.method = Method::kIa3;
        o.feedforward_modules = {{"_proj"}};  // PEFT matches the end of the text
      },
      [](O& o) {
        o.method = Method::kPrompt;
        o.target_modules = {"nosuch"};
      },
  };
  const auto model = tiny_llama();
  for (const auto& change : changes) {
    LoraOptions options = good_options();
    change(options);
    EXPECT_NO_THROW(require_named_modules(options, *model)) << &change - changes;
  }
}

TEST(NamedModules, TheClosestNameIsOffered) {
  const auto model = tiny_llama();
  LoraOptions options = good_options();
  options.exclude_modules = {"model.layers.0.mlp.donw_proj"};
  EXPECT_THAT(message_of<ConfigError>([&] { require_named_modules(options, *model); }),
              HasSubstr("did you mean down_proj?"));
  options.exclude_modules = {"zzzzzzzzzzz"};
  EXPECT_THAT(message_of<ConfigError>([&] { require_named_modules(options, *model); }),
              HasSubstr("; correct or remove it"));
}

// PEFT raises an error for the product behind a state space in models of these families.
TEST(NamedModules, WhatPeftDoesNotAdaptIsRefused) {
  for (const char* config :
       {R"({"model_type": "falcon_h1", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1,
            "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
            "mamba_d_ssm": 24, "mamba_n_heads": 4, "mamba_d_state": 6})",
        R"({"model_type": "nemotron_h", "vocab_size": 40, "hidden_size": 16,
            "hybrid_override_pattern": "M*", "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2})"}) {
    const auto model = models::create_model(parse_json(config, "config.json"), {});
    LoraOptions options;
    options.target_modules = {"q_proj", "in_proj"};
    EXPECT_NO_THROW(require_named_modules(options, *model));
    options.target_modules = {"out_proj"};
    EXPECT_THAT(message_of<ConfigError>([&] { require_named_modules(options, *model); }),
                HasSubstr("as PEFT gives this one no branch in models of "));
    options.target_modules.clear();
    options.target_pattern = "all-linear";
    EXPECT_THAT(message_of<ConfigError>([&] { require_named_modules(options, *model); }),
                HasSubstr(".out_proj\", expected other layers"));
    options.method = Method::kIa3;
    EXPECT_NO_THROW(require_named_modules(options, *model));
  }
}

}  // namespace
}  // namespace strata::adapters
