// Oracle: the golden file of PEFT 0.21.2 for a LoRA config, and round trips.
#include "strata/hf/adapter_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata::hf {
namespace {

using strata::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What PEFT 0.21.2 saves for LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, ...).
constexpr const char* kPeftFile = R"({
  "alora_invocation_tokens": null,
  "alpha_pattern": {},
  "arrow_config": null,
  "auto_mapping": null,
  "base_model_name_or_path": "some/model",
  "bias": "none",
  "corda_config": null,
  "ensure_weight_tying": false,
  "eva_config": null,
  "exclude_modules": null,
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "kasa_config": null,
  "layer_replication": null,
  "layers_pattern": null,
  "layers_to_transform": null,
  "loftq_config": {},
  "lora_alpha": 32,
  "lora_bias": false,
  "lora_dropout": 0.05,
  "lora_ga_config": null,
  "megatron_config": null,
  "megatron_core": "megatron.core",
  "modules_to_save": ["lm_head"],
  "monteclora_config": null,
  "peft_type": "LORA",
  "peft_version": "0.21.2",
  "qalora_group_size": 16,
  "r": 16,
  "rank_pattern": {},
  "revision": null,
  "target_modules": ["v_proj", "q_proj"],
  "target_parameters": null,
  "task_type": "CAUSAL_LM",
  "trainable_token_indices": null,
  "use_bdlora": null,
  "use_dora": false,
  "use_qalora": false,
  "use_rslora": true,
  "velora_config": null
})";

AdapterConfig parse(const std::string& text) {
  return parse_adapter_config(parse_json(text, "a.json"), "a.json");
}

AdapterConfig parse_with(const std::string& entry) {
  return parse("{\"peft_type\": \"LORA\", " + entry + "}");
}

TEST(AdapterConfig, ReadsWhatPeftWrites) {
  const strata::testing::TemporaryFolder folder;
  folder.put("adapter_config.json", kPeftFile);
  const AdapterConfig config = read_adapter_config(folder.path());
  EXPECT_EQ(config.r, 16);
  EXPECT_EQ(config.lora_alpha, 32.0);
  EXPECT_EQ(config.lora_dropout, 0.05);
  EXPECT_THAT(config.target_modules, ElementsAre("v_proj", "q_proj"));
  EXPECT_EQ(config.target_modules_regex, std::nullopt);
  EXPECT_THAT(config.modules_to_save, ElementsAre("lm_head"));
  EXPECT_TRUE(config.use_rslora);
  EXPECT_EQ(config.base_model_name_or_path, "some/model");
  EXPECT_EQ(config.task_type, "CAUSAL_LM");
  EXPECT_EQ(config.init_lora_weights, "true");
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(AdapterConfig, MissingKeysTakePeftsDefaults) {
  const AdapterConfig config = parse(R"({"peft_type": "LORA"})");
  EXPECT_EQ(config.r, 8);
  EXPECT_EQ(config.lora_alpha, 8.0);
  EXPECT_EQ(config.task_type, "");
  EXPECT_FALSE(config.inference_mode);
  EXPECT_THAT(config.target_modules, IsEmpty());
}

TEST(AdapterConfig, WritesPeftsForm) {
  AdapterConfig config;
  config.r = 4;
  config.lora_alpha = 16;
  config.lora_dropout = 0.1;
  config.target_modules = {"q_proj", "v_proj"};
  config.base_model_name_or_path = "some/model";
  EXPECT_EQ(adapter_config_json(config), R"({
  "alpha_pattern": {},
  "auto_mapping": null,
  "base_model_name_or_path": "some/model",
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layers_pattern": null,
  "layers_to_transform": null,
  "lora_alpha": 16,
  "lora_dropout": 0.1,
  "modules_to_save": null,
  "peft_type": "LORA",
  "r": 4,
  "rank_pattern": {},
  "revision": null,
  "target_modules": [
    "q_proj",
    "v_proj"
  ],
  "task_type": "CAUSAL_LM",
  "use_rslora": false
})");
}

TEST(AdapterConfig, RoundTrips) {
  AdapterConfig config;
  config.lora_alpha = 12.5;
  config.target_modules_regex = ".*\\.(q|v)_proj";
  config.modules_to_save = {"lm_head", "embed_tokens"};
  config.use_rslora = true;
  config.task_type = "";
  config.init_lora_weights = "gaussian";
  config.target_parameters = {"mlp.experts.down_proj", "1.mlp.experts.gate_up_proj"};
  const std::string text = adapter_config_json(config);
  EXPECT_EQ(adapter_config_json(parse(text)), text);
  EXPECT_EQ(parse(text).target_modules_regex, config.target_modules_regex);
  EXPECT_EQ(parse(text).lora_alpha, 12.5);
  EXPECT_EQ(parse(text).target_parameters, config.target_parameters);
}

TEST(AdapterConfig, ReadsAndWritesVariants) {
  const AdapterConfig config = parse(R"({"peft_type": "LORA", "use_dora": true, "lora_bias": false,
      "bias": "lora_only", "rank_pattern": {"v_proj": 4, "q_proj": 2}, "alpha_pattern": {"k": 1.5},
      "layers_to_transform": 3, "layers_pattern": "layers", "exclude_modules": "a.*",
      "init_lora_weights": "pissa_niter_4"})");
  EXPECT_TRUE(config.use_dora);
  EXPECT_EQ(config.bias, "lora_only");
  const std::vector<std::pair<std::string, int64_t>> ranks = {{"v_proj", 4}, {"q_proj", 2}};
  EXPECT_EQ(config.rank_pattern, ranks);
  EXPECT_EQ(config.alpha_pattern[0].second, 1.5);
  EXPECT_EQ(config.layers_to_transform, std::vector<int64_t>{3});
  EXPECT_EQ(config.exclude_modules_regex, "a.*");
  const std::string text = adapter_config_json(config);
  EXPECT_EQ(adapter_config_json(parse(text)), text);
  EXPECT_THAT(text, HasSubstr("\"init_lora_weights\": \"pissa_niter_4\""));
}

TEST(AdapterConfig, KeysOfOtherMethodsSurviveARoundTrip) {
  const char* files[] = {
      R"({"peft_type": "VERA", "r": 12, "vera_dropout": 0.5, "d_initial": 0.25,
          "projection_prng_key": 9, "save_projection": false, "init_weights": false,
          "bias": "vera_only", "target_modules": ["q_proj"]})",
      R"({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 7, "prompt_tuning_init": "TEXT",
          "prompt_tuning_init_text": "a", "tokenizer_name_or_path": "m", "token_dim": 64})",
      R"({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 7, "num_attention_heads": 2,
          "num_layers": 3, "prefix_projection": true, "init_weights": null})",
      R"({"peft_type": "LORA", "init_lora_weights": "loftq",
          "loftq_config": {"loftq_bits": 8, "loftq_iter": 2}})"};
  for (const char* file : files) {
    const Json given = parse_json(file, "a.json");
    const Json written = parse_json(adapter_config_json(parse(file)), "b.json");
    for (const auto& [key, value] : given.items()) {
      if (value.is_null()) continue;
      EXPECT_EQ(written.value(key, Json()), value) << key;
    }
    EXPECT_THAT(parse(file).warnings, IsEmpty());
  }
  EXPECT_TRUE(parse_with(R"("fan_in_fan_out": true)").fan_in_fan_out);
}

TEST(AdapterConfig, TokensOfAnEmbeddingComeBackAsTheyWere) {
  const std::vector<int64_t> ids{7, 3};
  const AdapterConfig list = parse_with(R"("trainable_token_indices": [7, 3])");
  EXPECT_EQ(list.trainable_token_indices, ids);
  EXPECT_EQ(list.trainable_token_module, "");
  EXPECT_EQ(adapter_config_json(parse(adapter_config_json(list))), adapter_config_json(list));
  const AdapterConfig named = parse_with(
      R"("trainable_token_indices": {"lm_head": [7, 3], "embed_tokens": [7, 3]}, "ensure_weight_tying": true)");
  EXPECT_EQ(named.trainable_token_indices, ids);
  EXPECT_EQ(named.trainable_token_module, "embed_tokens");
  EXPECT_TRUE(named.ensure_weight_tying);
  EXPECT_EQ(adapter_config_json(parse(adapter_config_json(named))), adapter_config_json(named));
}

TEST(AdapterConfig, RefusesWhatItCannotApply) {
  const char* entries[] = {R"("use_qalora": true)",
                           R"("bias": "some")",
                           R"("layer_replication": [[0, 4]])",
                           R"("init_lora_weights": "corda")",
                           R"("trainable_token_indices": {"a": [1], "b": [2]})",
                           R"("kasa_config": {})",
                           R"("velora_config": {})"};
  for (const std::string entry : entries) {
    const std::string key = entry.substr(1, entry.find('"', 1) - 1);
    EXPECT_THAT(message_of<ConfigError>([&] { parse_with(entry); }),
                HasSubstr("a.json: " + key + ": found "))
        << entry;
  }
  EXPECT_THAT(message_of<ConfigError>([&] { parse(R"({"peft_type": "LOHA"})"); }),
              HasSubstr("a.json: peft_type: found \"LOHA\", expected LORA, IA3, VERA"));
}

TEST(AdapterConfig, RefusesWrongTypes) {
  const char* entries[] = {R"("r": 0)",
                           R"("r": "8")",
                           R"("r": 2.5)",
                           R"("r": true)",
                           R"("lora_alpha": null)",
                           R"("lora_dropout": 1.0)",
                           R"("lora_dropout": NaN)",
                           R"("target_modules": [1])",
                           R"("modules_to_save": "lm_head")",
                           R"("rank_pattern": {"q_proj": 2.5})",
                           R"("layers_to_transform": ["1"])",
                           R"("use_dora": 1)",
                           R"("trainable_token_indices": ["1"])",
                           R"("ensure_weight_tying": 1)",
                           R"("use_rslora": "yes")",
                           R"("base_model_name_or_path": 3)"};
  for (const std::string entry : entries) {
    const std::string key = entry.substr(1, entry.find('"', 1) - 1);
    EXPECT_THAT(message_of<FormatError>([&] { parse_with(entry); }),
                HasSubstr("a.json: " + key + ": found "))
        << entry;
  }
  for (const char* text : {"{}", "[]", "3"}) {
    EXPECT_THAT(message_of<FormatError>([&] { parse(text); }), HasSubstr("found no peft_type"));
  }
}

TEST(AdapterConfig, UnknownKeysAreWarnings) {
  const AdapterConfig config = parse_with(R"("use_future": true)");
  EXPECT_THAT(config.warnings, ElementsAre("a.json: use_future: unknown key, it has no effect"));
}

}  // namespace
}  // namespace strata::hf
