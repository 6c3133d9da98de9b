// adapter_config.json, as PEFT writes and reads it. Source: PEFT 0.21, LoraConfig.
// Never: adapter weights (ModelFolder and SafetensorsWriter), nor matching of module names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/json.h"

namespace strata::hf {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";
// A weight's key in the file: this and its path in the model; the adapter's name is removed.
inline constexpr const char* kAdapterKeyPrefix = "base_model.model.";
// The one key of a prompt or prefix.
inline constexpr const char* kPromptKey = "prompt_embeddings";
// The network that made a prefix while it trained: the beginning of its weights' names after the
// prefix. No adapter file holds them.
inline constexpr const char* kPromptEncoder = "prompt_encoder.";

// Defaults are PEFT's.
struct AdapterConfig {
  // LORA, IA3, VERA, PROMPT_TUNING, PREFIX_TUNING.
  std::string peft_type = "LORA";
  // (IA)^3; nothing: null, which is the model's default. An empty list is none.
  std::optional<std::vector<std::string>> feedforward_modules;
  std::optional<std::string> feedforward_modules_regex;
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  // Exactly one of the two; neither means the model family's default modules.
  std::vector<std::string> target_modules;
  std::optional<std::string> target_modules_regex;  // a string in the file: regex, or "all-linear"
  // Parameters that get a branch, by the ends of their names.
  std::vector<std::string> target_parameters;
  // A list, or an expression, that is left out again.
  std::vector<std::string> exclude_modules;
  std::optional<std::string> exclude_modules_regex;
  std::vector<int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;
  // In the order of the file: the first that matches decides.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;
  // Rows of the embedding that train alone, and the name by which the file calls it; empty: a list
  // without a name.
  std::vector<int64_t> trainable_token_indices;
  std::string trainable_token_module;
  // Other modules that the file names with the same rows: a tied output layer.
  std::vector<std::string> other_token_modules;
  bool ensure_weight_tying = false;
  // Whether targeted layers are stored as [in, out], GPT-2's Conv1D. PEFT writes what the last of
  // them is, and believes the layers when it reads.
  bool fan_in_fan_out = false;
  bool use_rslora = false;
  bool use_dora = false;
  bool lora_bias = false;
  std::string base_model_name_or_path;
  std::string revision;                 // empty: null
  std::string task_type = "CAUSAL_LM";  // empty: null
  std::string bias = "none";
  // How the first values were made: "true", "false", "gaussian", "orthogonal", "eva", "pissa",
  // "pissa_niter_N", "olora" or "loftq".
  std::string init_lora_weights = "true";
  int64_t loftq_bits = 4;
  int64_t loftq_iter = 1;
  // VERA; its dropout is lora_dropout.
  double d_initial = 0.1;
  int64_t projection_prng_key = 0;
  bool save_projection = true;
  // VERA: "true" or "false"; PREFIX_TUNING: "true" (random) or "zero".
  std::string init_weights = "true";
  // PROMPT_TUNING and PREFIX_TUNING. Sizes of the base are 0 where the file leaves them out.
  int64_t num_virtual_tokens = 0;
  int64_t token_dim = 0;
  int64_t num_layers = 0;
  int64_t num_attention_heads = 0;
  std::string prompt_tuning_init = "RANDOM";
  std::string prompt_tuning_init_text;
  std::string tokenizer_name_or_path;
  // The projected rows are what the file holds, so that only training depends on it.
  bool prefix_projection = false;
  int64_t encoder_hidden_size = 0;  // of the network that did it; 0: token_dim
  bool inference_mode = true;
  // Filled by reading: keys that nobody knows, one sentence each. Never written.
  std::vector<std::string> warnings;
};

// Reads FOLDER/adapter_config.json. A value of the wrong type is a FormatError; a feature that this
// version cannot apply (use_qalora, layer_replication, another peft_type, ...) is a ConfigError
// that names the key.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);
// `subject` names the file in messages.
AdapterConfig parse_adapter_config(const Json& json, const std::string& subject);

// The file's text in PEFT's form: keys sorted, indent 2, no final newline. Only keys that PEFT has
// known for long are written, so that older readers do not warn.
std::string adapter_config_json(const AdapterConfig& config);
// The same form of what an adapter_config.json holds. Patterns keep their order, in which the first
// that matches decides: PEFT sorts them when it saves, and then loads another adapter.
std::string peft_text(const Json& config);

}  // namespace strata::hf
