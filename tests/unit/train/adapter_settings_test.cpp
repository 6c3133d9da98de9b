// Oracle: the list of the settings itself, each of which must change what is attached.
#include "strata/train/setup/adapter_settings.h"

#include <functional>
#include <string_view>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../changed_fields.h"
#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata::train {
namespace {

using config::LoraConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

auto fields(const LoraConfig& config) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab,
               ac, ad, ae, af] = config;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa,
                  ab, ac, ad, ae, af);
}

struct Setting {
  std::string_view name;
  std::function<void(LoraConfig&)> change;
  bool is_read_elsewhere = false;  // whether there is an adapter; the text of a prompt
};

// In the order of the struct.
const std::vector<Setting>& settings() {
  using C = LoraConfig;
  static const std::vector<Setting> all = {
      {"use_peft", [](C& c) { c.use_peft = true; }, true},
      {"peft_type", [](C& c) { c.peft_type = config::PeftType::kVera; }},
      {"feedforward_modules", [](C& c) { c.feedforward_modules = {"up_proj"}; }},
      {"r", [](C& c) { c.r = 3; }},
      {"alpha", [](C& c) { c.alpha = 3; }},
      {"dropout", [](C& c) { c.dropout = 0.5; }},
      {"target_modules", [](C& c) { c.target_modules = {"q_proj"}; }},
      {"target_parameters", [](C& c) { c.target_parameters = {"down_proj"}; }},
      {"exclude_modules", [](C& c) { c.exclude_modules = {"q_proj"}; }},
      {"layers_to_transform", [](C& c) { c.layers_to_transform = {"1"}; }},
      {"layers_pattern", [](C& c) { c.layers_pattern = {"layers"}; }},
      {"rank_pattern", [](C& c) { c.rank_pattern = R"({"q_proj": 2})"; }},
      {"alpha_pattern", [](C& c) { c.alpha_pattern = R"({"q_proj": 2})"; }},
      {"modules_to_save", [](C& c) { c.modules_to_save = {"norm"}; }},
      {"trainable_token_indices", [](C& c) { c.trainable_token_indices = "1,2"; }},
      {"ensure_weight_tying", [](C& c) { c.ensure_weight_tying = true; }},
      {"use_rslora", [](C& c) { c.use_rslora = true; }},
      {"use_dora", [](C& c) { c.use_dora = true; }},
      {"lora_bias", [](C& c) { c.lora_bias = true; }},
      {"bias", [](C& c) { c.bias = "all"; }},
      {"init_lora_weights", [](C& c) { c.init_lora_weights = "pissa"; }},
      {"loftq_bits", [](C& c) { c.loftq_bits = 8; }},
      {"loftq_iter", [](C& c) { c.loftq_iter = 2; }},
      {"d_initial", [](C& c) { c.d_initial = 0.5; }},
      {"projection_prng_key", [](C& c) { c.projection_prng_key = 9; }},
      {"save_projection", [](C& c) { c.save_projection = false; }},
      {"init_weights", [](C& c) { c.init_weights = "false"; }},
      {"num_virtual_tokens", [](C& c) { c.num_virtual_tokens = 7; }},
      {"prompt_tuning_init", [](C& c) { c.prompt_tuning_init = "TEXT"; }},
      {"prompt_tuning_init_text", [](C& c) { c.prompt_tuning_init_text = "a"; }, true},
      {"prefix_projection", [](C& c) { c.prefix_projection = true; }},
      {"encoder_hidden_size", [](C& c) { c.encoder_hidden_size = 16; }},
  };
  return all;
}

TEST(AdapterSettings, EverySettingReachesTheAdapter) {
  const LoraConfig unset;
  for (size_t i = 0; i < settings().size(); ++i) {
    const Setting& setting = settings()[i];
    LoraConfig config;
    setting.change(config);
    const std::vector<bool> changed = testing::changed_fields(fields(config), fields(unset));
    ASSERT_EQ(changed.size(), settings().size());
    EXPECT_TRUE(changed[i]) << setting.name;
    EXPECT_NE(options_of(config) == options_of(unset), !setting.is_read_elsewhere) << setting.name;
  }
}

TEST(AdapterSettings, OneEntryThatIsNoNameIsAnExpression) {
  LoraConfig config;
  config.target_modules = {"all-linear"};
  config.exclude_modules = {".*v_proj"};
  EXPECT_EQ(options_of(config).target_pattern, "all-linear");
  EXPECT_EQ(options_of(config).exclude_pattern, ".*v_proj");
  config.target_modules = {".*a", ".*b"};
  EXPECT_THAT(options_of(config).target_modules, ElementsAre(".*a", ".*b"));
  EXPECT_EQ(options_of(config).target_pattern, std::nullopt);
}

TEST(AdapterSettings, PatternsKeepTheOrderInWhichTheyAreTried) {
  LoraConfig config;
  config.rank_pattern = R"({"v_proj": 4, "q_proj": 2})";
  EXPECT_THAT(options_of(config).rank_pattern, ElementsAre(Pair("v_proj", 4), Pair("q_proj", 2)));
  config.rank_pattern = R"({"v_proj": 4.5})";
  EXPECT_THAT(testing::message_of<ConfigError>([&] { options_of(config); }),
              HasSubstr("rank_pattern: found 4.5 for \"v_proj\", expected a whole number"));
}

TEST(AdapterSettings, TokensAreAListOrOneForEachModule) {
  LoraConfig config;
  for (const char* text : {"7,3", "[7, 3]", R"({"embed_tokens": [7, 3]})"}) {
    config.trainable_token_indices = text;
    EXPECT_THAT(options_of(config).trainable_tokens, ElementsAre(7, 3)) << text;
  }
  config.trainable_token_indices = R"({"lm_head": [7]})";
  EXPECT_EQ(options_of(config).token_module, "lm_head");
}

// PEFT's IA3Config and VeraConfig have no such keys, and its defaults stand in their place.
TEST(AdapterSettings, WhatAMethodsFileHasNoWordForIsLeftOut) {
  LoraConfig config;
  config.target_parameters = {"down_proj"};
  config.trainable_token_indices = "1";
  config.exclude_modules = {"q_proj"};
  config.use_rslora = true;
  config.peft_type = config::PeftType::kIa3;
  EXPECT_TRUE(options_of(config).target_parameters.empty());
  EXPECT_TRUE(options_of(config).trainable_tokens.empty());
  EXPECT_FALSE(options_of(config).use_rslora);
  EXPECT_FALSE(options_of(config).exclude_modules.empty());
  config.peft_type = config::PeftType::kVera;
  EXPECT_TRUE(options_of(config).exclude_modules.empty());
}

// TRL: clone_chat_template adds the new tokens and the output layer, each once.
TEST(AdapterSettings, NewTokensTrainBesideLora) {
  adapters::LoraOptions options;
  EXPECT_EQ(with_new_tokens(options, {}), options);
  options.trainable_tokens = {3};
  options.modules_to_save = {"lm_head"};
  const adapters::LoraOptions more = with_new_tokens(options, {3, 9});
  EXPECT_THAT(more.trainable_tokens, ElementsAre(3, 9));
  EXPECT_THAT(more.modules_to_save, ElementsAre("lm_head"));
  options.method = adapters::Method::kIa3;
  EXPECT_EQ(with_new_tokens(options, {9}), options);
}

}  // namespace
}  // namespace strata::train
