#include "strata/train/setup/adapter_settings.h"

#include <algorithm>
#include <charconv>

#include "strata/adapters/adapter_options.h"
#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/config/recipes.h"
#include "strata/hf/hub/model.h"
#include "strata/models/reward_head.h"
#include "strata/text/tokenizer.h"
#include "strata/train/setup/hub_place.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {
namespace {

// PEFT takes a string as a regular expression on whole module names, a list as endings of names.
bool is_pattern(const std::vector<std::string>& modules) {
  return modules.size() == 1 && (modules[0] == "all-linear" ||
                                 modules[0].find_first_of("*+?()[]{}|^$\\") != std::string::npos);
}

// rank_pattern and alpha_pattern: {"expression": number, ...} in the order in which they are tried.
template <typename T>
std::vector<std::pair<std::string, T>> patterns_of(const std::string& text, const char* setting) {
  std::vector<std::pair<std::string, T>> patterns;
  if (text.empty()) return patterns;
  const Json json = parse_json(text, setting);
  if (!json.is_object()) {
    throw ConfigError("{}: found {}, expected an object such as {{\"q_proj\": 16}}; correct it",
                      setting, text);
  }
  constexpr bool kIsWhole = std::is_integral_v<T>;
  for (const auto& [expression, number] : json.items()) {
    if (kIsWhole ? !number.is_number_integer() : !number.is_number()) {
      throw ConfigError(
          "{}: found {} for \"{}\", expected a {} such as 16; correct it", setting,
          dump_python(number, /*indent=*/-1, /*sort_keys=*/false, /*ensure_ascii=*/false),
          expression, kIsWhole ? "whole number" : "number");
    }
    patterns.emplace_back(expression, number.template get<T>());
  }
  return patterns;
}

int64_t layer_number(const std::string& text) {
  int64_t number = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && stop == text.data() + text.size() && number >= 0) return number;
  throw ConfigError(
      "layers_to_transform: found \"{}\", expected numbers of layers, from 0; correct it", text);
}

// [1, 2], 1,2 or {"embed_tokens": [1, 2]}.
void read_trainable_tokens(const std::string& text, adapters::LoraOptions& options) {
  if (text.empty()) return;
  const bool is_bare = text.find_first_of("[{") == std::string::npos;
  const Json json = {{"trainable_token_indices",
                      parse_json(is_bare ? "[" + text + "]" : text, "trainable_token_indices")},
                     {"peft_type", "LORA"}};
  const hf::AdapterConfig parsed = hf::parse_adapter_config(json, "settings");
  options.trainable_tokens = parsed.trainable_token_indices;
  options.token_module = parsed.trainable_token_module;
  options.other_token_modules = parsed.other_token_modules;
}

// What the method's adapter_config.json has no word for must not decide what trains.
void read_exceptions(const config::LoraConfig& config, adapters::LoraOptions& options) {
  const bool is_lora = options.method == adapters::Method::kLora;
  if (is_lora) {
    // TRL's and PEFT's None, as text.
    if (config.target_parameters != std::vector<std::string>{"none"}) {
      options.target_parameters = config.target_parameters;
    }
    read_trainable_tokens(config.trainable_token_indices, options);
    options.ensure_weight_tying = config.ensure_weight_tying;
  }
  if (!is_lora && options.method != adapters::Method::kIa3) return;
  if (is_pattern(config.exclude_modules)) {
    options.exclude_pattern = config.exclude_modules[0];
  } else {
    options.exclude_modules = config.exclude_modules;
  }
}

}  // namespace

adapters::LoraOptions options_of(const config::LoraConfig& config) {
  adapters::LoraOptions options;
  if (config.feedforward_modules == std::vector<std::string>{"none"}) {
    options.feedforward_modules.emplace();
  } else if (is_pattern(config.feedforward_modules)) {
    options.feedforward_pattern = config.feedforward_modules[0];
  } else if (!config.feedforward_modules.empty()) {
    options.feedforward_modules = config.feedforward_modules;
  }
  options.r = config.r;
  options.alpha = config.alpha;
  options.dropout = config.dropout;
  if (is_pattern(config.target_modules)) {
    options.target_pattern = config.target_modules[0];
  } else {
    options.target_modules = config.target_modules;
  }
  options.modules_to_save = config.modules_to_save;
  options.method = adapters::method_of(config::name_of(config.peft_type));
  read_exceptions(config, options);
  if (options.method == adapters::Method::kIa3) return options;
  for (const std::string& number : config.layers_to_transform) {
    options.layers_to_transform.push_back(layer_number(number));
  }
  options.layers_pattern = config.layers_pattern;
  options.rank_pattern = patterns_of<int64_t>(config.rank_pattern, "rank_pattern");
  options.alpha_pattern = patterns_of<double>(config.alpha_pattern, "alpha_pattern");
  options.use_rslora = config.use_rslora;
  options.use_dora = config.use_dora;
  options.lora_bias = config.lora_bias;
  options.bias = config.bias == "vera_only" ? "lora_only" : config.bias;
  options.init = config.init_lora_weights;
  options.loftq_bits = config.loftq_bits;
  options.loftq_iter = config.loftq_iter;
  options.d_initial = config.d_initial;
  options.projection_prng_key = static_cast<uint64_t>(config.projection_prng_key);
  options.save_projection = config.save_projection;
  options.init_weights = config.init_weights;
  options.num_virtual_tokens = config.num_virtual_tokens;
  options.prompt_init = config.prompt_tuning_init;
  options.prefix_projection = config.prefix_projection;
  options.encoder_hidden_size = config.encoder_hidden_size;
  return options;
}

adapters::LoraOptions with_new_tokens(adapters::LoraOptions options,
                                      const std::vector<int64_t>& new_tokens) {
  if (new_tokens.empty() || options.method != adapters::Method::kLora) return options;
  std::vector<int64_t>& ids = options.trainable_tokens;
  for (const int64_t id : new_tokens) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  std::vector<std::string>& saved = options.modules_to_save;
  if (std::find(saved.begin(), saved.end(), "lm_head") == saved.end()) saved.push_back("lm_head");
  return options;
}

void add_document_head(adapters::LoraOptions& options, models::Model& model) {
  std::vector<std::string>& saved = options.modules_to_save;
  for (const char* name : {models::kClassifier, models::kRewardLayer}) {
    if (std::ranges::find(saved, name) == saved.end()) saved.emplace_back(name);
  }
  std::ranges::copy(unsaved_new_layers(options, model), std::back_inserter(saved));
}

std::vector<std::string> unsaved_new_layers(const adapters::LoraOptions& options,
                                            models::Model& model) {
  std::vector<std::string> paths;
  for (const nn::Linear* layer : model.blocks().back()->linears()) {
    const std::string& path = layer->path();
    const bool is_saved = std::ranges::any_of(options.modules_to_save, [&](const auto& name) {
      return path.ends_with(name) || path.starts_with(name + ".");
    });
    if (!is_saved && model.is_of_document_head(path + ".weight")) paths.push_back(path);
  }
  return paths;
}

std::vector<int64_t> prompt_text_ids(const config::RunConfig& config) {
  const std::string& name = config.model.tokenizer_name.empty() ? config.model.model_name_or_path
                                                                : config.model.tokenizer_name;
  const auto tokenizer =
      text::Tokenizer::load(hf::locate_tokenizer(name, hub_place(config.model, name)));
  const std::vector<int32_t> ids = tokenizer->encode(config.lora.prompt_tuning_init_text);
  return {ids.begin(), ids.end()};
}

namespace {

// What a prompt's or prefix's file says of its base and of where its first values came from.
void describe_virtual_tokens(const config::RunConfig& config, const adapters::LoraOptions& options,
                             const models::Model& model, hf::AdapterConfig& result) {
  const models::KeyValueShape shape = model.key_value_shape();
  result.num_layers = shape.layers;
  result.num_attention_heads = shape.heads;
  if (options.method == adapters::Method::kPrefix) {
    result.prefix_projection = options.prefix_projection;
    result.encoder_hidden_size = options.encoder_hidden_size;
    result.token_dim = shape.heads * shape.head_dim;
  } else {
    result.token_dim = model.hidden_size();
    result.prompt_tuning_init_text = config.lora.prompt_tuning_init_text;
    result.tokenizer_name_or_path = config.model.model_name_or_path;
  }
}

// What attaching made of the settings.
void describe_attached(const adapters::LoraAdapter& adapter, const models::Model& model,
                       hf::AdapterConfig& result) {
  const adapters::LoraOptions& options = adapter.options();
  if (options.method == adapters::Method::kIa3) {
    result.feedforward_modules =
        options.feedforward_modules.value_or(model.default_ia3_feedforward());
  }
  const std::vector<nn::Linear*>& layers = adapter.layers();
  result.fan_in_fan_out = !layers.empty() && layers.back()->weight().is_transposed();
  const std::vector<std::string>& targets = adapter.saved_target_modules();
  const bool is_pattern = options.target_pattern && targets == std::vector{*options.target_pattern};
  result.target_modules = is_pattern ? std::vector<std::string>{} : targets;
  if (!is_pattern) result.target_modules_regex.reset();
}

}  // namespace

hf::AdapterConfig adapter_config_of(const config::RunConfig& config, const Trainee& trainee) {
  hf::AdapterConfig result;
  if (trainee.continued_adapter) result = *trainee.continued_adapter;
  const adapters::LoraOptions& options = trainee.adapter->options();
  adapters::describe_options(options, result);
  describe_attached(*trainee.adapter, *trainee.model, result);
  if (options.has_virtual_tokens() && !trainee.continued_adapter) {
    describe_virtual_tokens(config, options, *trainee.model, result);
  }
  // A continued adapter of a causal model says what it said before.
  const std::string_view task = config::recipe_of(config).task_type;
  if (task != "CAUSAL_LM") result.task_type = task;
  result.base_model_name_or_path = config.model.model_name_or_path;
  const std::string& revision = config.model.model_revision;
  result.revision = revision == hf::HubPlace{}.revision ? "" : revision;
  result.inference_mode = true;
  return result;
}

}  // namespace strata::train
