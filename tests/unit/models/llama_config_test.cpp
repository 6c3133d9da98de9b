// Oracle: transformers' LlamaConfig: the defaults, relations and key styles it accepts.
#include "strata/models/llama/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/models/registry.h"

namespace strata::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LlamaConfig parse(const std::string& text) {
  return parse_llama_config(parse_json(text, "config.json"));
}

std::vector<std::string> norm_names(const LlamaConfig& config) {
  std::vector<std::string> names;
  for (const LayerNorm& norm : config.layer_norms) names.push_back(norm.name);
  return names;
}

template <typename ErrorType>
void expect_error(const std::string& text, const std::string& message) {
  try {
    parse(text);
    FAIL() << "expected an error for " << text;
  } catch (const ErrorType& error) {
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(LlamaConfig, Defaults) {
  const LlamaConfig c = parse("{}");
  EXPECT_EQ(c.vocab_size, 32000);
  EXPECT_EQ(c.num_key_value_heads, 32);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_FALSE(c.pad_token_id.has_value());
}

TEST(LlamaConfig, NullMeansDefault) {
  const LlamaConfig c = parse(
      R"({"num_attention_heads": 8, "num_key_value_heads": null, "head_dim": null,
          "rope_scaling": null, "rope_theta": 5e5})");
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_EQ(c.head_dim, 512);
  EXPECT_EQ(c.rope.theta, 5e5);
}

TEST(LlamaConfig, BothRopeKeyStyles) {
  for (const char* text :
       {R"({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}})",
        R"({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5}})"}) {
    const LlamaConfig c = parse(text);
    EXPECT_EQ(c.rope.kind, nn::RopeKind::kLinear);
    EXPECT_EQ(c.rope.factor, 2.0);
    EXPECT_EQ(c.rope.theta, 5e5);
  }
}

TEST(LlamaConfig, NegativePaddingIdCountsFromTheEnd) {
  EXPECT_EQ(parse(R"({"pad_token_id": -1})").pad_token_id, 31999);
  expect_error<FormatError>(R"({"pad_token_id": 32000})", "pad_token_id = 32000");
}

TEST(LlamaConfig, ContradictionsNameTheKey) {
  expect_error<FormatError>(R"({"hidden_size": 30, "num_attention_heads": 4})", "hidden_size = 30");
  expect_error<FormatError>(R"({"num_key_value_heads": 5})", "num_key_value_heads = 5");
  expect_error<FormatError>(R"({"head_dim": 7})", "head_dim = 7");
  expect_error<FormatError>(R"({"num_hidden_layers": 0})", "num_hidden_layers = 0");
  expect_error<FormatError>(R"({"num_hidden_layers": 4097})",
                            "num_hidden_layers = 4097, expected at most 4096");
  expect_error<FormatError>(R"({"hidden_size": 2147483648})",
                            "hidden_size = 2147483648, expected at most 2147483647");
  expect_error<FormatError>(R"({"hidden_size": 32.5})", "hidden_size = 32.5, expected an integer");
  expect_error<FormatError>(R"({"tie_word_embeddings": 1})", "expected true or false");
  expect_error<FormatError>(R"({"rope_scaling": {"type": "linear"}})", "no factor");
  expect_error<FormatError>(R"({"rope_scaling": [1]})", "expected an object");
}

TEST(LlamaConfig, YarnFollowsTheLengths) {
  const LlamaConfig c = parse(
      R"({"max_position_embeddings": 64, "head_dim": 8, "rope_scaling":
          {"type": "yarn", "factor": null, "original_max_position_embeddings": 16}})");
  EXPECT_EQ(c.rope.factor, 4.0);
  EXPECT_DOUBLE_EQ(c.rope.attention_factor, 1.138629436111989);
  EXPECT_TRUE(c.rope.truncate);
  EXPECT_EQ(c.rope.length_of_change(), 0);
  EXPECT_EQ(c.rope.reach(), 64);
}

// Oracle: the model cards of Qwen2.5: factor times the original length, whatever the key beside it.
TEST(LlamaConfig, PositionsReachAsFarAsTheyAreScaledFor) {
  const LlamaConfig c = parse(
      R"({"max_position_embeddings": 32768, "rope_scaling":
          {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})");
  EXPECT_EQ(c.rope.reach(), 131072);
}

TEST(LlamaConfig, LongropeTakesTheKeyBesideFirst) {
  const LlamaConfig c = parse(
      R"({"max_position_embeddings": 64, "head_dim": 4, "original_max_position_embeddings": 32,
          "rope_scaling": {"type": "longrope", "original_max_position_embeddings": 16, "factor": 8,
                           "short_factor": [1, 1.5], "long_factor": [2, 3]}})");
  EXPECT_EQ(c.rope.length_of_change(), 32);
  EXPECT_DOUBLE_EQ(c.rope.attention_factor, 1.2649110640673518);
  EXPECT_EQ(c.rope.long_factors, (std::vector<double>{2, 3}));
}

TEST(LlamaConfig, ScaledPositionsNameWhatIsWrong) {
  const auto yarn = [](const std::string& more) {
    return R"({"head_dim": 4, "rope_scaling": {"type": "yarn")" + more + "}}";
  };
  const auto longrope = [](const std::string& more) {
    return R"({"head_dim": 4, "rope_scaling": {"type": "longrope", "long_factor": [1, 1])" + more +
           "}}";
  };
  expect_error<FormatError>(yarn(""), "no factor for rope_type \"yarn\"");
  expect_error<FormatError>(yarn(R"(, "factor": -1)"), "rope_scaling.factor = -1");
  expect_error<FormatError>(yarn(R"(, "factor": 2, "beta_fast": -3)"), "beta_fast = -3");
  expect_error<FormatError>(yarn(R"(, "factor": 2, "attention_factor": 0)"), "attention_factor");
  expect_error<FormatError>(yarn(R"(, "factor": 2, "truncate": 1)"), "expected true or false");
  expect_error<FormatError>(yarn(R"(, "factor": 2, "rope_theta": 1)"), "rope_theta = 1");
  expect_error<FormatError>(yarn(R"(, "factor": 8, "mscale": -9, "mscale_all_dim": 1)"),
                            "mscale = -9");
  expect_error<FormatError>(yarn(R"(, "factor": 2, "original_max_position_embeddings": 0)"),
                            "original_max_position_embeddings = 0");
  expect_error<ConfigError>(yarn(R"(, "factor": 2, "partial_rotary_factor": 0.5)"), "partial_rot");
  expect_error<FormatError>(longrope(""), "no short_factor");
  expect_error<FormatError>(longrope(R"(, "short_factor": 2)"), "expected a list of numbers");
  expect_error<FormatError>(longrope(R"(, "short_factor": [1, 0])"), "a list of numbers above 0");
  expect_error<FormatError>(longrope(R"(, "short_factor": [1, 1, 1])"), "with 3 numbers");
  expect_error<FormatError>(
      longrope(R"(, "short_factor": [1, 1], "original_max_position_embeddings": 1)"),
      "original_max_position_embeddings = 1");
}

TEST(LlamaConfig, WhatIsNotComputedIsRefused) {
  expect_error<ConfigError>(R"({"hidden_act": "gelu"})", "hidden_act \"gelu\"");
  expect_error<ConfigError>(R"({"rope_scaling": {"type": "su", "factor": 2}})", "\"su\"");
  expect_error<ConfigError>(R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})",
                            "which has no window");
  expect_error<FormatError>(R"({"attention_dropout": 1})", "attention_dropout = 1");
  EXPECT_EQ(parse(R"({"attention_dropout": 0.1})").attention_dropout, 0.1);
}

// Oracle: Qwen2Config's layer_types and MistralConfig's sliding_window.
TEST(LlamaConfig, WindowsOfLayers) {
  using Windows = std::vector<int64_t>;
  const auto qwen = [](const std::string& keys) {
    return parse_qwen2_config(parse_json(
        R"({"num_hidden_layers": 3, "sliding_window": 7, "max_window_layers": 1, )" + keys + "}",
        "config.json"));
  };
  EXPECT_EQ(qwen(R"("use_sliding_window": false)").windows, Windows{});
  EXPECT_EQ(qwen(R"("use_sliding_window": true)").windows, (Windows{0, 7, 7}));
  EXPECT_EQ(qwen(R"("use_sliding_window": true, "layer_types": ["sliding_attention",
                    "full_attention", "full_attention"])")
                .windows,
            (Windows{7, 0, 0}));
  const auto mistral = [](const std::string& text) {
    return parse_mistral_config(parse_json(text, "config.json"));
  };
  EXPECT_EQ(mistral(R"({"num_hidden_layers": 2})").windows, (Windows{4096, 4096}));
  EXPECT_THROW(mistral(R"({"num_hidden_layers": 2, "attention_dropout": 0.1})"), ConfigError);
  EXPECT_THROW(parse_smollm3_config(parse_json(
                   R"({"use_sliding_window": true, "sliding_window": 7, "attention_dropout": 0.1})",
                   "config.json")),
               ConfigError);
  EXPECT_EQ(parse_qwen2_config(parse_json(R"({"use_sliding_window": true, "sliding_window": null})",
                                          "config.json"))
                .windows,
            Windows{});
  EXPECT_EQ(mistral(R"({"num_hidden_layers": 2, "sliding_window": null})").windows, Windows{});
  const auto expect_refusal = [&](const std::string& keys, const std::string& message) {
    try {
      qwen(keys);
      FAIL() << "expected an error for " << keys;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  expect_refusal(R"("layer_types": ["full_attention"])", "num_hidden_layers = 3");
  expect_refusal(R"("layer_types": ["full_attention", "chunked_attention", "full_attention"])",
                 "\"chunked_attention\" in layer_types");
  expect_refusal(R"("layer_types": ["full_attention", 3, "full_attention"])",
                 "\"3\" in layer_types");
  expect_refusal(R"("layer_types": ["full_attention", "sliding_attention", "full_attention"])",
                 "use_sliding_window = false");
}

TEST(LlamaConfig, MistralThatListsItsLayersIsMinistral) {
  const auto mistral = [](const std::string& text) {
    return parse_mistral_config(parse_json(R"({"num_hidden_layers": 2)" + text + "}", "c"));
  };
  const LlamaConfig c =
      mistral(R"(, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"])");
  EXPECT_EQ(c.windows, (std::vector<int64_t>{7, 0}));
  EXPECT_EQ(c.layer_class, "MinistralDecoderLayer");
  EXPECT_EQ(mistral("").layer_class, "MistralDecoderLayer");
  EXPECT_EQ(mistral(R"(, "num_key_value_heads": null)").num_key_value_heads, 32);
  EXPECT_EQ(mistral("").num_key_value_heads, 8);
  EXPECT_THROW(
      mistral(
          R"(, "sliding_window": null, "layer_types": ["sliding_attention", "full_attention"])"),
      FormatError);
}

TEST(LlamaConfig, LayersOfSmolLm3WithoutPositions) {
  const auto smollm3 = [](const std::string& text) {
    return parse_smollm3_config(parse_json(R"({"num_hidden_layers": 3)" + text + "}", "c"));
  };
  EXPECT_EQ(smollm3("").rotates, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(smollm3("").rope.theta, 2000000.0);
  EXPECT_EQ(smollm3("").pad_token_id, 128004);
  EXPECT_FALSE(smollm3(R"(, "pad_token_id": null)").pad_token_id.has_value());
  const LlamaConfig c = smollm3(
      R"(, "no_rope_layers": [0, 1, 0, 1], "use_sliding_window": true, "sliding_window": 9)");
  EXPECT_EQ(c.rotates, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(c.windows, (std::vector<int64_t>{9, 0, 9}));
  EXPECT_THROW(smollm3(R"(, "no_rope_layers": [0, 1])"), FormatError);
  EXPECT_THROW(smollm3(R"(, "no_rope_layers": [0, 1, "x"])"), FormatError);
  EXPECT_THROW(smollm3(R"(, "no_rope_layers": 3)"), FormatError);
  EXPECT_THROW(
      smollm3(R"(, "layer_types": ["full_attention", "sliding_attention", "full_attention"])"),
      FormatError);
}

TEST(Registry, UnknownFamilyListsTheKnownOnes) {
  try {
    create_model(parse_json(R"({"model_type": "mamba"})", "config.json"), {});
    FAIL() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"mamba\", expected one of "));
    EXPECT_THAT(error.what(), HasSubstr(", mistral, mixtral, "));
  }
}

TEST(GlmConfig, Defaults) {
  const LlamaConfig c = parse_glm_config(Json::object());
  EXPECT_EQ(c.vocab_size, 151552);
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.pad_token_id, 151329);
  EXPECT_EQ(c.rope.head_dim, 64);
  EXPECT_EQ(c.rope.pairs, ops::RopePairs::kNeighbours);
  EXPECT_TRUE(c.input_bias);
  EXPECT_FALSE(c.output_bias);
  EXPECT_TRUE(c.fused_gate_up);
  EXPECT_THAT(norm_names(c), ElementsAre("input_layernorm", "post_attention_layernorm"));
  EXPECT_THAT(norm_names(parse_glm4_config(Json::object())),
              ElementsAre("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm",
                          "post_mlp_layernorm"));
}

TEST(GemmaConfig, Defaults) {
  const LlamaConfig c = parse_gemma_config(Json::object());
  EXPECT_EQ(c.vocab_size, 256000);
  EXPECT_EQ(c.num_key_value_heads, 16);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.pad_token_id, 0);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.norm_kind, ops::RmsNormKind::kGemma);
  EXPECT_EQ(c.gate, ops::GateKind::kGeluTanh);
  EXPECT_DOUBLE_EQ(c.embedding_scale, 55.42562584220407);
}

TEST(GemmaConfig, APaddingIdOfNullIsNone) {
  EXPECT_FALSE(parse_gemma_config(parse_json(R"({"pad_token_id": null})", "config.json"))
                   .pad_token_id.has_value());
}

TEST(Gemma3Config, OldAndNewKeysOfTheRotations) {
  for (const char* text :
       {R"({"num_hidden_layers": 2, "sliding_window_pattern": 2, "rope_local_base_freq": 2e4,
            "rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8}})",
        R"({"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
              "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
              "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5}}})"}) {
    const LlamaConfig c = parse_gemma3_text_config(parse_json(text, "config.json"));
    EXPECT_THAT(c.windows, testing::ElementsAre(4096, 0));
    EXPECT_EQ(c.rope.kind, nn::RopeKind::kLinear);
    EXPECT_EQ(c.rope.factor, 8.0);
    EXPECT_EQ(c.rope.theta, 5e5);
    EXPECT_EQ(c.local_rope->kind, nn::RopeKind::kDefault);
    EXPECT_EQ(c.local_rope->theta, 2e4);
  }
}

TEST(Gemma3Config, Defaults) {
  const LlamaConfig c = parse_gemma3_text_config(Json::object());
  EXPECT_EQ(c.vocab_size, 262208);
  EXPECT_EQ(c.num_key_value_heads, 4);
  EXPECT_EQ(c.attention_scale, 1.0 / 16);
  EXPECT_EQ(c.windows.at(4), 4096);
  EXPECT_EQ(c.windows.at(5), 0);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.local_rope->theta, 1e4);
  EXPECT_EQ(c.layer_norms.size(), 4);
  EXPECT_TRUE(c.head_norms && c.tie_word_embeddings);
}

TEST(Gemma2Config, Defaults) {
  const LlamaConfig c = parse_gemma2_config(Json::object());
  EXPECT_EQ(c.vocab_size, 256000);
  EXPECT_EQ(c.attention_scale, 1.0 / 16);
  EXPECT_EQ(c.attention_softcap, 50);
  EXPECT_EQ(c.logit_softcap, 30);
  EXPECT_EQ(c.windows.at(0), 4096);
  EXPECT_EQ(c.windows.at(1), 0);
  EXPECT_THAT(norm_names(c),
              ElementsAre("input_layernorm", "post_attention_layernorm",
                          "pre_feedforward_layernorm", "post_feedforward_layernorm"));
  EXPECT_FALSE(c.head_norms || c.local_rope);
}

TEST(Gemma2Config, CapsOfNullAreNone) {
  const LlamaConfig c = parse_gemma2_config(parse_json(
      R"({"attn_logit_softcapping": null, "final_logit_softcapping": null})", "config.json"));
  EXPECT_EQ(c.attention_softcap, 0);
  EXPECT_EQ(c.logit_softcap, 0);
}

TEST(Olmo2Config, Defaults) {
  const LlamaConfig c = parse_olmo2_config(Json::object());
  EXPECT_EQ(c.vocab_size, 50304);
  EXPECT_EQ(c.num_key_value_heads, 32);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.pad_token_id, 1);
  EXPECT_EQ(c.rope.theta, 1e4);
  EXPECT_THAT(norm_names(c), ElementsAre("post_attention_layernorm", "post_feedforward_layernorm"));
  EXPECT_TRUE(c.row_norms && !c.head_norms);
  EXPECT_TRUE(c.windows.empty() && c.lora_targets.empty());
}

TEST(Olmo3Config, Defaults) {
  const LlamaConfig c = parse_olmo3_config(Json::object());
  EXPECT_EQ(c.windows.at(2), 4096);
  EXPECT_EQ(c.windows.at(3), 0);
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_EQ(c.local_rope->theta, 5e5);
}

TEST(Olmo3Config, OldKeysOfTheRotationAreOfGlobalLayers) {
  const LlamaConfig c = parse_olmo3_config(parse_json(R"({"num_hidden_layers": 4, "rope_theta": 1e4,
      "rope_scaling": {"rope_type": "yarn", "factor": 8}})",
                                                      "config.json"));
  EXPECT_EQ(c.rope.kind, nn::RopeKind::kYarn);
  EXPECT_EQ(c.rope.theta, 1e4);
  EXPECT_EQ(c.local_rope->kind, nn::RopeKind::kDefault);
  EXPECT_EQ(c.local_rope->theta, 5e5);
}

}  // namespace
}  // namespace strata::models
