// adapter_config.json as PEFT writes it, each method's in its own form.
#include "strata/hf/adapter_files.h"

#include <cmath>
#include <map>

namespace strata::hf {
namespace {

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json names_or_null(const std::vector<std::string>& names) {
  return names.empty() ? Json(nullptr) : Json(names);
}

// PEFT declares lora_alpha as an integer; people also write fractions.
Json integer_if_whole(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

Json modules_or_null(const std::vector<std::string>& names,
                     const std::optional<std::string>& expression) {
  return expression ? Json(*expression) : names_or_null(names);
}

// Keys that PEFT has not always known: written only where they say something, so that older readers
// do not warn.
void write_variant(const AdapterConfig& config, Json& json) {
  if (config.use_dora) json["use_dora"] = true;
  if (config.lora_bias) json["lora_bias"] = true;
  if (config.ensure_weight_tying) json["ensure_weight_tying"] = true;
  if (!config.trainable_token_indices.empty()) {
    Json& entry = json["trainable_token_indices"];
    if (config.trainable_token_module.empty()) {
      entry = config.trainable_token_indices;
    } else {
      entry[config.trainable_token_module] = config.trainable_token_indices;
    }
  }
  if (!config.target_parameters.empty()) json["target_parameters"] = config.target_parameters;
  if (!config.exclude_modules.empty() || config.exclude_modules_regex) {
    json["exclude_modules"] = modules_or_null(config.exclude_modules, config.exclude_modules_regex);
  }
  for (const auto& [expression, rank] : config.rank_pattern)
    json["rank_pattern"][expression] = rank;
  for (const auto& [expression, alpha] : config.alpha_pattern) {
    json["alpha_pattern"][expression] = integer_if_whole(alpha);
  }
  if (!config.layers_to_transform.empty()) {
    json["layers_to_transform"] = config.layers_to_transform;
  }
  json["layers_pattern"] = names_or_null(config.layers_pattern);
}

// What every method's file holds.
Json shared_config(const AdapterConfig& config) {
  Json json;
  json["auto_mapping"] = nullptr;
  json["base_model_name_or_path"] = text_or_null(config.base_model_name_or_path);
  json["inference_mode"] = config.inference_mode;
  json["peft_type"] = config.peft_type;
  json["revision"] = text_or_null(config.revision);
  json["task_type"] = text_or_null(config.task_type);
  return json;
}

Json sorted_by_keys(const Json& value) {
  if (!value.is_object()) return value;
  std::map<std::string, Json> entries;
  for (const auto& [key, entry] : value.items()) entries.emplace(key, sorted_by_keys(entry));
  Json sorted = Json::object();
  for (const auto& [key, entry] : entries) sorted[key] = entry;
  return sorted;
}

Json size_or_null(int64_t size) { return size > 0 ? Json(size) : Json(nullptr); }

std::string vera_config_json(const AdapterConfig& config) {
  Json json = shared_config(config);
  json["bias"] = config.bias == "lora_only" ? "vera_only" : config.bias;
  json["d_initial"] = config.d_initial;
  json["fan_in_fan_out"] = config.fan_in_fan_out;
  json["init_weights"] = config.init_weights != "false";
  json["layers_pattern"] = names_or_null(config.layers_pattern);
  json["layers_to_transform"] = nullptr;
  if (!config.layers_to_transform.empty()) {
    json["layers_to_transform"] = config.layers_to_transform;
  }
  json["modules_to_save"] = names_or_null(config.modules_to_save);
  json["projection_prng_key"] = config.projection_prng_key;
  json["r"] = config.r;
  json["save_projection"] = config.save_projection;
  json["target_modules"] = modules_or_null(config.target_modules, config.target_modules_regex);
  json["vera_dropout"] = config.lora_dropout;
  return dump_python(json);
}

std::string virtual_tokens_config_json(const AdapterConfig& config) {
  Json json = shared_config(config);
  json["num_virtual_tokens"] = config.num_virtual_tokens;
  json["num_transformer_submodules"] = 1;
  json["num_layers"] = size_or_null(config.num_layers);
  json["num_attention_heads"] = size_or_null(config.num_attention_heads);
  json["token_dim"] = size_or_null(config.token_dim);
  if (config.peft_type == "PREFIX_TUNING") {
    json["encoder_hidden_size"] = size_or_null(
        config.encoder_hidden_size > 0 ? config.encoder_hidden_size : config.token_dim);
    json["prefix_projection"] = config.prefix_projection;
    return dump_python(json);
  }
  json["prompt_tuning_init"] = config.prompt_tuning_init;
  json["prompt_tuning_init_text"] = text_or_null(config.prompt_tuning_init_text);
  json["tokenizer_kwargs"] = nullptr;
  json["tokenizer_name_or_path"] = text_or_null(config.tokenizer_name_or_path);
  return dump_python(json);
}

std::string ia3_config_json(const AdapterConfig& config) {
  Json json = shared_config(config);
  json["fan_in_fan_out"] = config.fan_in_fan_out;
  json["feedforward_modules"] = nullptr;
  if (config.feedforward_modules) json["feedforward_modules"] = *config.feedforward_modules;
  if (config.feedforward_modules_regex) {
    json["feedforward_modules"] = *config.feedforward_modules_regex;
  }
  json["init_ia3_weights"] = true;
  json["modules_to_save"] = names_or_null(config.modules_to_save);
  json["target_modules"] = modules_or_null(config.target_modules, config.target_modules_regex);
  if (!config.exclude_modules.empty() || config.exclude_modules_regex) {
    json["exclude_modules"] = modules_or_null(config.exclude_modules, config.exclude_modules_regex);
  }
  return dump_python(json);
}

}  // namespace

std::string adapter_config_json(const AdapterConfig& config) {
  if (config.peft_type == "IA3") return ia3_config_json(config);
  if (config.peft_type == "VERA") return vera_config_json(config);
  if (config.peft_type.ends_with("_TUNING")) return virtual_tokens_config_json(config);
  Json json = shared_config(config);
  json["alpha_pattern"] = Json::object();
  json["bias"] = config.bias;
  json["fan_in_fan_out"] = config.fan_in_fan_out;
  const std::string& init = config.init_lora_weights;
  json["init_lora_weights"] = init == "true" || init == "false" ? Json(init == "true") : Json(init);
  json["layers_to_transform"] = nullptr;
  json["lora_alpha"] = integer_if_whole(config.lora_alpha);
  json["lora_dropout"] = config.lora_dropout;
  json["modules_to_save"] = names_or_null(config.modules_to_save);
  if (init == "loftq") {
    json["loftq_config"]["loftq_bits"] = config.loftq_bits;
    json["loftq_config"]["loftq_iter"] = config.loftq_iter;
  }
  json["r"] = config.r;
  json["rank_pattern"] = Json::object();
  json["target_modules"] = modules_or_null(config.target_modules, config.target_modules_regex);
  json["use_rslora"] = config.use_rslora;
  write_variant(config, json);
  return peft_text(json);
}

std::string peft_text(const Json& config) {
  constexpr const char* kPatterns[] = {"rank_pattern", "alpha_pattern"};
  Json text = sorted_by_keys(config);
  for (const char* name : kPatterns) {
    if (const auto patterns = config.find(name); patterns != config.end()) text[name] = *patterns;
  }
  return dump_python(text, /*indent=*/2, /*sort_keys=*/false);
}

}  // namespace strata::hf
