// adapter_config.json as PEFT has written it: which keys there are and what they mean.
#include "strata/hf/adapter_files.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "strata/base/error.h"
#include "strata/base/folder_update.h"
#include "strata/hf/adapter_field.h"

namespace strata::hf {
namespace {

// Keys whose value changes nothing for a trained adapter on this program.
constexpr std::array<std::string_view, 10> kIgnoredKeys = {
    "auto_mapping", "peft_version", "megatron_core",    "qalora_group_size", "runtime_config",
    "eva_config",   "peft_type",    "init_ia3_weights", "tokenizer_kwargs",  "is_prompt_learning"};

// Keys of features that this version does not apply: only their neutral value (null, false, an
// empty list or object) is accepted.
constexpr std::array<std::string_view, 12> kUnsupportedKeys = {"alora_invocation_tokens",
                                                               "arrow_config",
                                                               "corda_config",
                                                               "kasa_config",
                                                               "layer_replication",
                                                               "lora_ga_config",
                                                               "megatron_config",
                                                               "monteclora_config",
                                                               "use_bdlora",
                                                               "use_qalora",
                                                               "velora_config",
                                                               "enable_lora"};

// Ways to make first values. The last three change the base model as well, and others that this
// version cannot apply (corda, ...) do too, so that they must not be skipped.
constexpr std::array<std::string_view, 6> kInits = {"gaussian", "orthogonal", "eva",
                                                    "pissa",    "olora",      "loftq"};
constexpr std::array<std::string_view, 5> kTypes = {"LORA", "IA3", "VERA", "PROMPT_TUNING",
                                                    "PREFIX_TUNING"};

template <size_t N>
bool contains(const std::array<std::string_view, N>& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

// Of these an empty object is the method with its defaults.
constexpr std::array<std::string_view, 2> kMethods = {"kasa_config", "velora_config"};

bool is_neutral(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         (value.is_structured() && value.empty());
}

std::string read_init(const AdapterField& field) {
  const Json& value = field.value();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_null()) return "false";
  if (!value.is_string()) field.fail("true, false or a name");
  const std::string name = value.get<std::string>();
  if (!contains(kInits, name) && !name.starts_with("pissa_niter_")) {
    field.refuse("true, false, gaussian, orthogonal, eva, pissa, pissa_niter_N, olora or loftq");
  }
  return name;
}

void read_modules(const AdapterField& field, std::vector<std::string>& names,
                  std::optional<std::string>& expression) {
  if (field.value().is_string()) {
    expression = field.value().get<std::string>();
  } else {
    names = field.names();
  }
}

// A list of ids, or an object with one by the embedding's name; a tied output layer may be named
// with the same ids.
void read_token_indices(const AdapterField& field, AdapterConfig& config) {
  if (!field.value().is_object()) {
    config.trainable_token_indices = field.integers();
    return;
  }
  for (const auto& [name, ids] : field.value().items()) {
    const std::vector<int64_t> list =
        AdapterField(ids, "trainable_token_indices", field.subject()).integers();
    std::vector<int64_t>& known = config.trainable_token_indices;
    if (!known.empty() && known != list) field.refuse("the same ids for all modules");
    known = list;
    std::string& module = config.trainable_token_module;
    if (module.empty()) {
      module = name;
      continue;
    }
    config.other_token_modules.push_back(name);
    if (module == "lm_head") std::swap(module, config.other_token_modules.back());
  }
}

// The same for keys that only choose layers or add weights to them.
bool read_variant(const std::string& key, const AdapterField& field, AdapterConfig& config) {
  if (key == "feedforward_modules") {
    if (field.value().is_null()) return true;
    config.feedforward_modules.emplace();
    read_modules(field, *config.feedforward_modules, config.feedforward_modules_regex);
  } else if (key == "target_parameters") {
    config.target_parameters = field.names();
  } else if (key == "exclude_modules") {
    read_modules(field, config.exclude_modules, config.exclude_modules_regex);
  } else if (key == "layers_to_transform") {
    config.layers_to_transform = field.integers();
  } else if (key == "layers_pattern") {
    config.layers_pattern =
        field.value().is_string() ? std::vector{field.value().get<std::string>()} : field.names();
    if (field.value() == "") config.layers_pattern.clear();  // PEFT's default names
  } else if (key == "rank_pattern") {
    config.rank_pattern = field.patterns<int64_t>();
  } else if (key == "alpha_pattern") {
    config.alpha_pattern = field.patterns<double>();
  } else if (key == "use_dora") {
    config.use_dora = field.boolean();
  } else if (key == "trainable_token_indices") {
    read_token_indices(field, config);
  } else if (key == "ensure_weight_tying") {
    config.ensure_weight_tying = field.boolean();
  } else if (key == "lora_bias") {
    config.lora_bias = field.boolean();
  } else if (key == "bias") {
    config.bias = field.text_or_null();
    if (config.bias == "vera_only") config.bias = "lora_only";
    if (config.bias != "none" && config.bias != "all" && config.bias != "lora_only") {
      field.refuse("none, all or lora_only");
    }
  } else {
    return false;
  }
  return true;
}

// loftq_config: null, {} or {"loftq_bits": 4, "loftq_iter": 1}.
void read_loftq(const AdapterField& field, const std::string& subject, AdapterConfig& config) {
  if (field.value().is_null()) return;
  if (!field.value().is_object()) field.fail("an object or null");
  for (const auto& [key, value] : field.value().items()) {
    const std::string name = "loftq_config: " + key;
    const AdapterField entry(value, name, subject);
    if (key == "loftq_bits") config.loftq_bits = entry.positive_integer();
    if (key == "loftq_iter") config.loftq_iter = entry.positive_integer();
  }
}

std::string read_init_weights(const AdapterField& field) {
  if (field.value().is_null()) return "true";
  if (field.value().is_boolean()) return field.boolean() ? "true" : "false";
  if (field.text_or_null() != "zero") field.refuse("true, false, null or \"zero\"");
  return "zero";
}

// VeRA's keys.
bool read_vera(const std::string& key, const AdapterField& field, AdapterConfig& config) {
  if (key == "vera_dropout") {
    config.lora_dropout = field.number();
    if (config.lora_dropout < 0 || config.lora_dropout >= 1)
      field.fail("a number from 0 to below 1");
  } else if (key == "d_initial") {
    config.d_initial = field.number();
  } else if (key == "projection_prng_key") {
    if (!field.value().is_number_integer()) field.fail("an integer");
    config.projection_prng_key = field.value().get<int64_t>();
  } else if (key == "save_projection") {
    config.save_projection = field.boolean();
  } else if (key == "init_weights") {
    config.init_weights = read_init_weights(field);
  } else {
    return false;
  }
  return true;
}

// Keys of prompts and prefixes. Sizes may be null: the base has them.
bool read_virtual_tokens(const std::string& key, const AdapterField& field, AdapterConfig& config) {
  const auto size = [&] { return field.value().is_null() ? 0 : field.positive_integer(); };
  if (key == "num_virtual_tokens") {
    config.num_virtual_tokens = field.positive_integer();
  } else if (key == "token_dim") {
    config.token_dim = size();
  } else if (key == "num_layers") {
    config.num_layers = size();
  } else if (key == "num_attention_heads") {
    config.num_attention_heads = size();
  } else if (key == "num_transformer_submodules") {
    if (size() > 1) field.refuse("1");
  } else if (key == "prompt_tuning_init") {
    config.prompt_tuning_init = field.text_or_null();
  } else if (key == "prompt_tuning_init_text") {
    config.prompt_tuning_init_text = field.text_or_null();
  } else if (key == "tokenizer_name_or_path") {
    config.tokenizer_name_or_path = field.text_or_null();
  } else if (key == "prefix_projection") {
    config.prefix_projection = field.boolean();
  } else if (key == "encoder_hidden_size") {
    config.encoder_hidden_size = size();
  } else {
    return false;
  }
  return true;
}

// A key of the method's own.
bool read_method(const std::string& key, const AdapterField& field, AdapterConfig& config) {
  if (config.peft_type == "VERA") return read_vera(key, field, config);
  if (config.peft_type.ends_with("_TUNING")) {
    return read_virtual_tokens(key, field, config) ||
           (key == "init_weights" && read_vera(key, field, config));
  }
  return false;
}

// Whether the key is one of AdapterConfig's own.
bool read_setting(const std::string& key, const AdapterField& field, AdapterConfig& config) {
  if (key == "r") {
    config.r = field.positive_integer();
  } else if (key == "lora_alpha") {
    config.lora_alpha = field.number();
  } else if (key == "lora_dropout") {
    config.lora_dropout = field.number();
    if (config.lora_dropout < 0 || config.lora_dropout >= 1)
      field.fail("a number from 0 to below 1");
  } else if (key == "target_modules") {
    read_modules(field, config.target_modules, config.target_modules_regex);
  } else if (key == "modules_to_save") {
    config.modules_to_save = field.names();
  } else if (key == "use_rslora") {
    config.use_rslora = field.boolean();
  } else if (key == "base_model_name_or_path") {
    config.base_model_name_or_path = field.text_or_null();
  } else if (key == "revision") {
    config.revision = field.text_or_null();
  } else if (key == "task_type") {
    config.task_type = field.text_or_null();
  } else if (key == "init_lora_weights") {
    config.init_lora_weights = read_init(field);
  } else if (key == "inference_mode") {
    config.inference_mode = field.boolean();
  } else {
    return read_variant(key, field, config);
  }
  return true;
}

}  // namespace

AdapterConfig parse_adapter_config(const Json& json, const std::string& subject) {
  const auto type = json.is_object() ? json.find("peft_type") : json.end();
  if (!json.is_object() || type == json.end()) {
    throw FormatError(
        "{}: found no peft_type, expected an adapter config with \"peft_type\": \"LORA\"; "
        "check the file",
        subject);
  }
  const AdapterField type_field(*type, "peft_type", subject);
  if (!type->is_string() || !contains(kTypes, type->get<std::string>())) {
    type_field.refuse("LORA, IA3, VERA, PROMPT_TUNING or PREFIX_TUNING");
  }
  AdapterConfig config;
  config.peft_type = type->get<std::string>();
  config.task_type.clear();  // PEFT's default is null; ours is for new adapters
  config.inference_mode = false;
  for (const auto& [key, value] : json.items()) {
    const AdapterField field(value, key, subject);
    if (key == "loftq_config") {
      read_loftq(field, subject, config);
      continue;
    }
    if (key == "fan_in_fan_out") {
      config.fan_in_fan_out = !is_neutral(value) && field.boolean();
      continue;
    }
    if (read_method(key, field, config)) continue;
    if (read_setting(key, field, config) || contains(kIgnoredKeys, key)) continue;
    if (!contains(kUnsupportedKeys, key)) {
      config.warnings.push_back(fmt::format("{}: {}: unknown key, it has no effect", subject, key));
    } else if (!is_neutral(value) || (contains(kMethods, key) && value.is_object())) {
      field.refuse("no value");
    }
  }
  return config;
}

AdapterConfig read_adapter_config(const std::filesystem::path& folder) {
  require_whole_folder(folder);
  const std::filesystem::path path = folder / kAdapterConfigFile;
  return parse_adapter_config(read_json_file(path), path.string());
}

}  // namespace strata::hf
