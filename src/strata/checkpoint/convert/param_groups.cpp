#include "strata/checkpoint/convert/param_groups.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "strata/base/error.h"
#include "strata/checkpoint/convert/peft_names.h"
#include "strata/checkpoint/setting_text.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/weight_names.h"
#include "strata/optim/adamw.h"

namespace strata::checkpoint {
namespace {

double number_or(const std::string& text, double otherwise) {
  double value = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

hf::PyValue group_of(const SavedState& state, double weight_decay, bool decays) {
  const double rate = number_or(setting_of(state, "learning_rate"), 1e-3);
  hf::PyList weights;
  for (const SavedTensor& tensor : state.tensors()) {
    if (!tensor.is_parameter() || tensor.is_frozen || hf::is_buffer(tensor.weight)) continue;
    if (optim::is_decayed(tensor.weight) != decays) continue;
    weights.items.push_back({name_in_optimizer(state, tensor.weight)});
  }
  const double betas[] = {number_or(setting_of(state, "adam_beta1"), 0.9),
                          number_or(setting_of(state, "adam_beta2"), 0.999)};
  return {hf::PyItems{{"lr", {rate}},
                      {"betas", {hf::PyList{{{betas[0]}, {betas[1]}}, /*is_tuple=*/true}}},
                      {"eps", {number_or(setting_of(state, "adam_epsilon"), 1e-8)}},
                      {"weight_decay", {weight_decay}},
                      {"amsgrad", {false}},
                      {"maximize", {false}},
                      {"foreach", {}},
                      {"capturable", {false}},
                      {"differentiable", {false}},
                      {"fused", {}},
                      {"decoupled_weight_decay", {true}},
                      {"initial_lr", {rate}},
                      {"params", {std::move(weights)}}}};
}

// "model.layers.0.self_attn.q_proj" of
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A...".
std::string module_of(std::string name) {
  if (name.starts_with(hf::kAdapterKeyPrefix)) {
    name = name.substr(std::string_view(hf::kAdapterKeyPrefix).size());
  }
  const size_t branch =
      std::min({name.find(".lora_"), name.find(".ia3_l"), name.find(".vera_lambda_")});
  return branch == std::string::npos ? "" : name.substr(0, branch);
}

// Whether a branch is one of target_parameters: those of linear layers are inside this module.
bool is_of_experts(const std::string& module) {
  return module.ends_with(".experts") || module.ends_with(".experts.base_layer");
}

// A list as a setting holds it; "none" is TRL's and PEFT's None.
std::vector<std::string> names_of(const std::string& text) {
  std::vector<std::string> names;
  if (text == "none") return names;
  std::istringstream rest(text);
  for (std::string name; std::getline(rest, name, ',');) names.push_back(name);
  return names;
}

// {"q_proj": 4, ...} as a setting holds it.
template <typename T>
std::vector<std::pair<std::string, T>> patterns_of(const std::string& text, const char* name) {
  std::vector<std::pair<std::string, T>> patterns;
  if (text.empty()) return patterns;
  const Json json = parse_json(text, name);
  for (const auto& [expression, number] : json.items()) {
    if (number.is_number()) patterns.emplace_back(expression, number.template get<T>());
  }
  return patterns;
}

// As in PEFT's files, where nothing stands for the main branch.
std::string base_revision(const SavedState& state) {
  const std::string revision = setting_of(state, "model_revision");
  return revision == "main" ? "" : revision;
}

// adapter_config.json of the adapter that the run continued, which decided in place of the run's
// settings; null where it trained a new one.
Json continued_config(const SavedState& state) {
  const std::string continued = setting_of(state, "adapter_name_or_path");
  if (continued.empty()) return {};
  const std::filesystem::path file = std::filesystem::path(continued) / hf::kAdapterConfigFile;
  if (!std::filesystem::exists(file)) {
    throw ConfigError(
        "{}: found a checkpoint of a run that continued the adapter {}, of which {} is not there, "
        "expected it, for its rank and scale; put a copy of it into the checkpoint's folder",
        state.path().string(), continued, hf::kAdapterConfigFile);
  }
  Json config = read_json_file(file);
  const std::string base = setting_of(state, "model_name_or_path");
  if (config.is_object() && !base.empty()) {
    config["base_model_name_or_path"] = base;
    const std::string revision = base_revision(state);
    config["revision"] = revision.empty() ? Json() : Json(revision);
  }
  return config;
}

// A sharded checkpoint leaves out what its key draws again.
void leave_out_projection(const SavedState& state, Json& config) {
  const auto saves = config.find("save_projection");
  if (saves == config.end()) return;
  const bool is_there = std::ranges::any_of(state.tensors(), [](const SavedTensor& tensor) {
    return tensor.weight == "base_model.vera_A";
  });
  if (!is_there) *saves = false;
}

// What the tensors say: which layers have branches, which modules trained whole, how many tokens a
// prompt has. Requires: config.bias.
void name_modules(const SavedState& state, hf::AdapterConfig& config) {
  std::set<std::string> modules;
  for (const SavedTensor& tensor : state.tensors()) {
    if (tensor.weight.ends_with(hf::kPromptKey)) config.num_virtual_tokens = tensor.shape.at(0);
    const bool is_inner = tensor.weight.find(hf::kPromptEncoder) != std::string::npos;
    if (tensor.is_frozen || is_inner || tensor.weight.ends_with(hf::kPromptKey)) continue;
    const std::string module = module_of(tensor.weight);
    if (is_of_experts(module)) continue;
    if (!module.empty()) {
      modules.insert(module);
    } else if (tensor.is_parameter() &&
               (config.bias == "none" || !tensor.weight.ends_with(".bias"))) {
      config.modules_to_save.push_back(tensor.weight.substr(0, tensor.weight.rfind('.')));
    }
  }
  config.target_modules.assign(modules.begin(), modules.end());
}

}  // namespace

std::string setting_of(const SavedState& state, const char* name) {
  return setting_text(state.facts().settings, name);
}

hf::PyValue param_groups(const SavedState& state) {
  const double decay = number_or(setting_of(state, "weight_decay"), 0);
  const bool decays_all = setting_of(state, "decay_norms_and_biases") == "true";
  return {
      hf::PyList{{group_of(state, decay, true), group_of(state, decays_all ? decay : 0, false)}}};
}

std::vector<size_t> places_by_weight(const SavedState& state) {
  std::vector<size_t> places;
  for (size_t i = 0; i < state.tensors().size(); ++i) {
    if (!state.tensors()[i].is_parameter()) places.push_back(i);
  }
  std::ranges::stable_sort(places, [&](size_t a, size_t b) {
    return state.tensors()[a].weight < state.tensors()[b].weight;
  });
  return places;
}

std::string adapter_config_text(const SavedState& state) {
  Json known = state.facts().adapter_config;
  if (known.is_null()) known = continued_config(state);
  if (!known.is_null()) {
    leave_out_projection(state, known);
    return hf::peft_text(known);
  }
  const std::string rank = setting_of(state, "lora_r");
  if (rank.empty()) {
    throw ConfigError(
        "{}: found an adapter without the settings of its run, expected adapter_config.json next "
        "to it; put it there",
        state.path().string());
  }
  hf::AdapterConfig config;
  config.r = static_cast<int64_t>(number_or(rank, 8));
  config.lora_alpha = number_or(setting_of(state, "lora_alpha"), 8);
  config.lora_dropout = number_or(setting_of(state, "lora_dropout"), 0);
  config.use_rslora = setting_of(state, "use_rslora") == "true";
  config.use_dora = setting_of(state, "use_dora") == "true";
  config.lora_bias = setting_of(state, "lora_bias") == "true";
  const auto take = [&](const char* name, std::string& to) {
    if (std::string text = setting_of(state, name); !text.empty()) to = std::move(text);
  };
  take("peft_type", config.peft_type);
  take("bias", config.bias);
  take("init_weights", config.init_weights);
  take("prompt_tuning_init", config.prompt_tuning_init);
  take("prompt_tuning_init_text", config.prompt_tuning_init_text);
  config.tokenizer_name_or_path = setting_of(state, "model_name_or_path");
  config.loftq_bits = static_cast<int64_t>(number_or(setting_of(state, "loftq_bits"), 4));
  config.loftq_iter = static_cast<int64_t>(number_or(setting_of(state, "loftq_iter"), 1));
  config.prefix_projection = setting_of(state, "prefix_projection") == "true";
  config.d_initial = number_or(setting_of(state, "d_initial"), 0.1);
  config.projection_prng_key =
      static_cast<int64_t>(number_or(setting_of(state, "projection_prng_key"), 0));
  // A checkpoint leaves out what its key draws again.
  config.save_projection = false;
  take("init_lora_weights", config.init_lora_weights);
  // Fitted to codes: the adapter belongs to the base as it is.
  const bool is_fitted = setting_of(state, "load_in_4bit") == "true";
  if (config.init_lora_weights == "loftq" && is_fitted) config.init_lora_weights = "true";
  config.rank_pattern = patterns_of<int64_t>(setting_of(state, "rank_pattern"), "rank_pattern");
  config.alpha_pattern = patterns_of<double>(setting_of(state, "alpha_pattern"), "alpha_pattern");
  config.base_model_name_or_path = setting_of(state, "model_name_or_path");
  config.revision = base_revision(state);
  config.target_parameters = names_of(setting_of(state, "lora_target_parameters"));
  name_modules(state, config);
  return hf::adapter_config_json(config);
}

}  // namespace strata::checkpoint
