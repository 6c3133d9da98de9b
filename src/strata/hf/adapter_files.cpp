#include "strata/hf/adapter_files.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "strata/base/error.h"
#include "strata/base/folder_update.h"

namespace strata::hf {
namespace {

// Keys whose value changes nothing for a trained adapter on this program.
constexpr std::array<std::string_view, 10> kIgnoredKeys = {
    "auto_mapping", "peft_version", "megatron_core",    "qalora_group_size", "runtime_config",
    "eva_config",   "peft_type",    "init_ia3_weights", "tokenizer_kwargs",  "is_prompt_learning"};

// Keys of features that this version does not apply: only their neutral value (null, false, an
// empty list or object) is accepted.
constexpr std::array<std::string_view, 13> kUnsupportedKeys = {"alora_invocation_tokens",
                                                               "arrow_config",
                                                               "corda_config",
                                                               "kasa_config",
                                                               "layer_replication",
                                                               "lora_ga_config",
                                                               "megatron_config",
                                                               "monteclora_config",
                                                               "target_parameters",
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

bool is_neutral(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         (value.is_structured() && value.empty());
}

// One value of the file, with its key for messages.
class Field {
 public:
  Field(const Json& value, std::string_view key, const std::string& subject)
      : value_(value), key_(key), subject_(subject) {}

  [[noreturn]] void fail(std::string_view expected) const {
    throw FormatError("{}: {}: found {}, expected {}; correct the file", subject_, key_, text(),
                      expected);
  }
  [[noreturn]] void refuse(std::string_view expected) const {
    throw ConfigError(
        "{}: {}: found {}, expected {}; this version cannot apply it, use an adapter "
        "without it",
        subject_, key_, text(), expected);
  }

  double number() const {
    if (!value_.is_number()) fail("a number");
    const double number = value_.get<double>();
    if (!std::isfinite(number)) fail("a finite number");
    return number;
  }
  int64_t positive_integer() const {
    if (!value_.is_number_integer() || value_.get<int64_t>() <= 0) fail("a positive integer");
    return value_.get<int64_t>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) fail("true or false");
    return value_.get<bool>();
  }
  // null is the empty text.
  std::string text_or_null() const {
    if (value_.is_null()) return "";
    if (!value_.is_string()) fail("a string or null");
    return value_.get<std::string>();
  }
  // null is the empty list.
  std::vector<std::string> names() const {
    if (value_.is_null()) return {};
    const auto is_string = [](const Json& item) { return item.is_string(); };
    if (!value_.is_array() || !std::all_of(value_.begin(), value_.end(), is_string)) {
      fail("a list of names or null");
    }
    return value_.get<std::vector<std::string>>();
  }
  // An integer, a list of them, or null.
  std::vector<int64_t> integers() const {
    if (value_.is_null()) return {};
    if (value_.is_number_integer()) return {value_.get<int64_t>()};
    const auto is_integer = [](const Json& item) { return item.is_number_integer(); };
    if (!value_.is_array() || !std::all_of(value_.begin(), value_.end(), is_integer)) {
      fail("an integer, a list of integers or null");
    }
    return value_.get<std::vector<int64_t>>();
  }
  // An object of numbers in its order; null is empty.
  template <typename T>
  std::vector<std::pair<std::string, T>> patterns() const {
    std::vector<std::pair<std::string, T>> result;
    if (value_.is_null()) return result;
    if (!value_.is_object()) fail("an object of numbers");
    for (const auto& [expression, number] : value_.items()) {
      if (std::is_integral_v<T> ? !number.is_number_integer() : !number.is_number()) {
        fail("an object of numbers");
      }
      result.emplace_back(expression, number.template get<T>());
    }
    return result;
  }
  const Json& value() const { return value_; }
  const std::string& subject() const { return subject_; }

 private:
  std::string text() const { return dump_python(value_, -1, false, false); }

  const Json& value_;
  std::string_view key_;
  const std::string& subject_;
};

std::string read_init(const Field& field) {
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

void read_modules(const Field& field, std::vector<std::string>& names,
                  std::optional<std::string>& expression) {
  if (field.value().is_string()) {
    expression = field.value().get<std::string>();
  } else {
    names = field.names();
  }
}

// A list of ids, or an object with one by the embedding's name; a tied output layer may be named
// with the same ids.
void read_token_indices(const Field& field, AdapterConfig& config) {
  if (!field.value().is_object()) {
    config.trainable_token_indices = field.integers();
    return;
  }
  for (const auto& [name, ids] : field.value().items()) {
    const std::vector<int64_t> list =
        Field(ids, "trainable_token_indices", field.subject()).integers();
    std::vector<int64_t>& known = config.trainable_token_indices;
    if (!known.empty() && known != list) field.refuse("the same ids for all modules");
    known = list;
    const bool is_first = config.trainable_token_module.empty();
    if (is_first || config.trainable_token_module == "lm_head") {
      config.trainable_token_module = name;
    }
  }
}

// The same for keys that only choose layers or add weights to them.
bool read_variant(const std::string& key, const Field& field, AdapterConfig& config) {
  if (key == "feedforward_modules") {
    read_modules(field, config.feedforward_modules, config.feedforward_modules_regex);
  } else if (key == "exclude_modules") {
    read_modules(field, config.exclude_modules, config.exclude_modules_regex);
  } else if (key == "layers_to_transform") {
    config.layers_to_transform = field.integers();
  } else if (key == "layers_pattern") {
    config.layers_pattern =
        field.value().is_string() ? std::vector{field.value().get<std::string>()} : field.names();
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
void read_loftq(const Field& field, const std::string& subject, AdapterConfig& config) {
  if (field.value().is_null()) return;
  if (!field.value().is_object()) field.fail("an object or null");
  for (const auto& [key, value] : field.value().items()) {
    const std::string name = "loftq_config: " + key;
    const Field entry(value, name, subject);
    if (key == "loftq_bits") config.loftq_bits = entry.positive_integer();
    if (key == "loftq_iter") config.loftq_iter = entry.positive_integer();
  }
}

std::string read_init_weights(const Field& field) {
  if (field.value().is_null()) return "true";
  if (field.value().is_boolean()) return field.boolean() ? "true" : "false";
  if (field.text_or_null() != "zero") field.refuse("true, false, null or \"zero\"");
  return "zero";
}

// VeRA's keys.
bool read_vera(const std::string& key, const Field& field, AdapterConfig& config) {
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
bool read_virtual_tokens(const std::string& key, const Field& field, AdapterConfig& config) {
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
bool read_method(const std::string& key, const Field& field, AdapterConfig& config) {
  if (config.peft_type == "VERA") return read_vera(key, field, config);
  if (config.peft_type.ends_with("_TUNING")) {
    return read_virtual_tokens(key, field, config) ||
           (key == "init_weights" && read_vera(key, field, config));
  }
  return false;
}

// Whether the key is one of AdapterConfig's own.
bool read_setting(const std::string& key, const Field& field, AdapterConfig& config) {
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

}  // namespace

AdapterConfig parse_adapter_config(const Json& json, const std::string& subject) {
  const auto type = json.is_object() ? json.find("peft_type") : json.end();
  if (!json.is_object() || type == json.end()) {
    throw FormatError(
        "{}: found no peft_type, expected an adapter config with \"peft_type\": \"LORA\"; "
        "check the file",
        subject);
  }
  const Field type_field(*type, "peft_type", subject);
  if (!type->is_string() || !contains(kTypes, type->get<std::string>())) {
    type_field.refuse("LORA, IA3, VERA, PROMPT_TUNING or PREFIX_TUNING");
  }
  AdapterConfig config;
  config.peft_type = type->get<std::string>();
  config.task_type.clear();  // PEFT's default is null; ours is for new adapters
  config.inference_mode = false;
  for (const auto& [key, value] : json.items()) {
    const Field field(value, key, subject);
    if (key == "loftq_config") {
      read_loftq(field, subject, config);
      continue;
    }
    if (key == "fan_in_fan_out") {
      if (is_neutral(value)) continue;
      config.warnings.push_back(
          fmt::format("{}: fan_in_fan_out: has no effect, the layers store [out, in]; PEFT sets it "
                      "to false too",
                      subject));
      continue;
    }
    if (read_method(key, field, config)) continue;
    if (read_setting(key, field, config) || contains(kIgnoredKeys, key)) continue;
    if (!contains(kUnsupportedKeys, key)) {
      config.warnings.push_back(fmt::format("{}: {}: unknown key, it has no effect", subject, key));
    } else if (!is_neutral(value)) {
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

namespace {

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

Json size_or_null(int64_t size) { return size > 0 ? Json(size) : Json(nullptr); }

std::string vera_config_json(const AdapterConfig& config) {
  Json json = shared_config(config);
  json["bias"] = config.bias == "lora_only" ? "vera_only" : config.bias;
  json["d_initial"] = config.d_initial;
  json["fan_in_fan_out"] = false;
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
  json["fan_in_fan_out"] = false;
  json["feedforward_modules"] =
      modules_or_null(config.feedforward_modules, config.feedforward_modules_regex);
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
  json["fan_in_fan_out"] = false;
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
  return dump_python(json);
}

}  // namespace strata::hf
