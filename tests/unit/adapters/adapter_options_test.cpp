// Oracle: a round trip through the text of an adapter_config.json.
#include "strata/adapters/adapter_options.h"

#include <array>
#include <string_view>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "../changed_fields.h"
#include "strata/base/json.h"

namespace strata::adapters {
namespace {

// In the order of the struct.
constexpr std::string_view kFields[] = {"method",
                                        "feedforward_modules",
                                        "feedforward_pattern",
                                        "r",
                                        "alpha",
                                        "dropout",
                                        "target_modules",
                                        "target_pattern",
                                        "target_parameters",
                                        "exclude_modules",
                                        "exclude_pattern",
                                        "layers_to_transform",
                                        "layers_pattern",
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "modules_to_save",
                                        "trainable_tokens",
                                        "token_module",
                                        "other_token_modules",
                                        "ensure_weight_tying",
                                        "fan_in_fan_out",
                                        "use_rslora",
                                        "use_dora",
                                        "lora_bias",
                                        "bias",
                                        "init",
                                        "loftq_bits",
                                        "loftq_iter",
                                        "keeps_base",
                                        "d_initial",
                                        "projection_prng_key",
                                        "save_projection",
                                        "init_weights",
                                        "num_virtual_tokens",
                                        "prefix_projection",
                                        "encoder_hidden_size",
                                        "prompt_init",
                                        "prompt_text_ids"};

auto fields(const LoraOptions& options) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab,
               ac, ad, ae, af, ag, ah, ai, aj, ak, al] = options;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa,
                  ab, ac, ad, ae, af, ag, ah, ai, aj, ak, al);
}

// Every field that the method's file holds, away from its default.
std::vector<LoraOptions> examples() {
  const LoraOptions lora = {.r = 3,
                            .alpha = 5.5,
                            .dropout = 0.25,
                            .target_modules = {"q_proj", "up_proj"},
                            .target_pattern = {},
                            .target_parameters = {"experts.down_proj"},
                            .exclude_modules = {"1.q_proj"},
                            .layers_to_transform = {1, 4},
                            .layers_pattern = {"layers"},
                            .rank_pattern = {{"v_proj", 4}, {"q_proj", 2}},
                            .alpha_pattern = {{"v_proj", 1.5}, {"k_proj", 2}},
                            .modules_to_save = {"norm"},
                            .trainable_tokens = {7, 3},
                            .token_module = "lm_head",
                            .ensure_weight_tying = true,
                            .fan_in_fan_out = true,
                            .use_rslora = true,
                            .use_dora = true,
                            .lora_bias = true,
                            .bias = "lora_only",
                            .init = "loftq",
                            .loftq_bits = 8,
                            .loftq_iter = 2};
  LoraOptions patterns = {.target_modules = {}, .target_pattern = ".*_proj", .modules_to_save = {}};
  patterns.exclude_pattern = ".*v_proj";
  const LoraOptions ia3 = {.method = Method::kIa3,
                           .feedforward_modules = {{"up_proj"}},
                           .target_modules = {"k_proj", "up_proj"},
                           .target_pattern = {},
                           .modules_to_save = {"norm"},
                           .fan_in_fan_out = true};
  LoraOptions ia3_patterns = {
      .method = Method::kIa3, .target_modules = {}, .target_pattern = {}, .modules_to_save = {}};
  ia3_patterns.feedforward_modules.emplace();  // an expression in the place of a list
  ia3_patterns.feedforward_pattern = ".*up_proj";
  ia3_patterns.target_pattern = ".*_proj";
  const LoraOptions vera = {.method = Method::kVera,
                            .r = 3,
                            .dropout = 0.25,
                            .target_modules = {"q_proj"},
                            .target_pattern = {},
                            .layers_to_transform = {1},
                            .layers_pattern = {"layers"},
                            .modules_to_save = {"norm"},
                            .fan_in_fan_out = true,
                            .bias = "lora_only",
                            .d_initial = 0.5,
                            .projection_prng_key = 9,
                            .save_projection = false,
                            .init_weights = "false"};
  const LoraOptions prompt = {.method = Method::kPrompt,
                              .target_modules = {},
                              .target_pattern = {},
                              .modules_to_save = {},
                              .num_virtual_tokens = 7,
                              .prompt_init = "SAMPLE_VOCAB"};
  const LoraOptions prefix = {.method = Method::kPrefix,
                              .target_modules = {},
                              .target_pattern = {},
                              .modules_to_save = {},
                              .num_virtual_tokens = 7};
  return {lora, patterns, ia3, ia3_patterns, vera, prompt, prefix};
}

LoraOptions written_and_read(const LoraOptions& options) {
  hf::AdapterConfig config;
  describe_options(options, config);
  const std::string text = hf::adapter_config_json(config);
  return lora_options_of(hf::parse_adapter_config(parse_json(text, "text"), "text"));
}

TEST(AdapterOptions, AFileHoldsWhatItsMethodKnows) {
  for (const LoraOptions& options : examples()) {
    const LoraOptions read = written_and_read(options);
    const std::vector<bool> lost = testing::changed_fields(fields(read), fields(options));
    for (size_t i = 0; i < lost.size(); ++i) {
      EXPECT_FALSE(lost[i]) << peft_type_of(options.method) << ": " << kFields[i];
    }
    EXPECT_TRUE(read == options);
  }
}

// A field that no example changes is one that a round trip says nothing about.
TEST(AdapterOptions, EveryFieldIsInSomeFile) {
  // How values came to be is nothing to who loads them; a tied module is found by the tie.
  constexpr std::string_view kInNone[] = {"keeps_base", "prompt_text_ids", "other_token_modules",
                                          "prefix_projection", "encoder_hidden_size"};
  const LoraOptions unset;
  std::vector<bool> is_changed(std::size(kFields));
  for (const LoraOptions& options : examples()) {
    const std::vector<bool> changed = testing::changed_fields(fields(options), fields(unset));
    ASSERT_EQ(changed.size(), is_changed.size());
    for (size_t i = 0; i < changed.size(); ++i) is_changed[i] = is_changed[i] || changed[i];
  }
  for (size_t i = 0; i < is_changed.size(); ++i) {
    const bool is_in_none = std::ranges::find(kInNone, kFields[i]) != std::end(kInNone);
    EXPECT_NE(is_changed[i], is_in_none) << kFields[i];
  }
}

TEST(AdapterOptions, TheBaseOfCodesIsNotMadeAgain) {
  LoraOptions options;
  options.init = "loftq";
  options.keeps_base = true;
  EXPECT_EQ(written_and_read(options).init, "true");
}

TEST(AdapterOptions, AProjectedPrefixIsReadAsItsRows) {
  hf::AdapterConfig config;
  config.peft_type = "PREFIX_TUNING";
  config.num_virtual_tokens = 4;
  config.prefix_projection = true;
  config.encoder_hidden_size = 16;
  const LoraOptions options = lora_options_of(config);
  EXPECT_FALSE(options.prefix_projection);
  EXPECT_EQ(options.encoder_hidden_size, 0);
  // What is not of the settings stays in the file.
  describe_options(options, config);
  EXPECT_TRUE(config.prefix_projection);
  EXPECT_EQ(config.encoder_hidden_size, 16);
}

}  // namespace
}  // namespace strata::adapters
