#include "strata/adapters/named_modules.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/ranges.h>

#include "strata/adapters/expert_targets.h"
#include "strata/adapters/module_match.h"
#include "strata/adapters/target_layers.h"
#include "strata/adapters/target_parameters.h"
#include "strata/base/error.h"
#include "strata/base/text_distance.h"
#include "strata/hf/module_pattern.h"
#include "strata/models/fused_linears.h"

namespace strata::adapters {
namespace {

// "q_proj" of "model.layers.0.self_attn.q_proj", each once.
std::vector<std::string> last_names(const std::vector<std::string>& paths) {
  std::set<std::string> names;
  for (const std::string& path : paths) {
    const std::string name = path.substr(path.rfind('.') + 1);
    if (name.find_first_not_of("0123456789") != std::string::npos) names.insert(name);
  }
  return {names.begin(), names.end()};
}

[[noreturn]] void refuse(const char* setting, const std::string& entry,
                         const std::vector<std::string>& paths) {
  const std::vector<std::string> names = last_names(paths);
  const auto close = closest(entry.substr(entry.rfind('.') + 1), names);
  throw ConfigError(
      "{}: found \"{}\", which matches none of this model's modules, expected some of {}; {}",
      setting, entry, fmt::join(names, ", "),
      close ? fmt::format("did you mean {}?", *close) : "correct or remove it");
}

// Each entry alone must satisfy `means` for one of the paths.
void require_each(
    const char* setting, const std::vector<std::string>& entries,
    const std::vector<std::string>& paths,
    const std::function<bool(const std::string& path, const std::string& entry)>& means) {
  for (const std::string& entry : entries) {
    const bool is_meant =
        std::ranges::any_of(paths, [&](const std::string& path) { return means(path, entry); });
    if (!is_meant) refuse(setting, entry, paths);
  }
}

bool is_end_of(const std::string& path, const std::string& entry) {
  return matches_list(path, {entry});
}

bool is_matched_by(const std::string& path, const std::string& expression) {
  return hf::ModulePattern(expression).matches(path);
}

// Matches keys as rank_of() and alpha_of() read them.
bool is_key_of(const std::string& path, const std::string& key) {
  return hf::ModulePattern("(.*\\.)?(" + key + ")").matches(path);
}

template <typename T>
std::vector<std::string> keys_of(const std::vector<std::pair<std::string, T>>& patterns) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : patterns) keys.push_back(key);
  return keys;
}

void require_layers(const LoraOptions& options, const std::vector<std::string>& paths) {
  if (options.layers_to_transform.empty()) return;
  for (const std::string& name : options.layers_pattern) {
    const LayerNumbers behind({name});
    const bool is_found = std::ranges::any_of(
        paths, [&](const std::string& path) { return behind.of(path).has_value(); });
    if (is_found) continue;
    throw ConfigError(
        "layers_pattern: found \"{}\", after which this model has no number, expected the name of "
        "its list of layers; correct it or leave it out",
        name);
  }
  const LayerNumbers layers(options.layers_pattern);
  std::set<int64_t> numbers;
  for (const std::string& path : paths) {
    if (const auto number = layers.of(path)) numbers.insert(*number);
  }
  for (const int64_t wanted : options.layers_to_transform) {
    if (numbers.contains(wanted) || numbers.empty()) continue;
    throw ConfigError(
        "layers_to_transform: found {}, expected numbers of this model's layers, {} to {}; correct "
        "it",
        wanted, *numbers.begin(), *numbers.rbegin());
  }
}

// PEFT raises an error for such layers, when it trains and when it loads.
void require_branches(const LoraOptions& options, const std::vector<nn::Linear*>& targets,
                      models::Model& model) {
  if (options.method != Method::kLora) return;
  for (models::Block* block : model.blocks()) {
    auto* has_some = dynamic_cast<models::HasFusedLinears*>(block);
    if (has_some == nullptr) continue;
    for (const nn::Linear* layer : has_some->untargeted_linears()) {
      if (std::ranges::find(targets, layer) == targets.end()) continue;
      throw ConfigError(
          "target_modules: found \"{}\", expected other layers, as PEFT gives this one no branch "
          "in "
          "models of {} and would not load the adapter; leave it out",
          layer->path(), model.architecture());
    }
  }
}

// PEFT raises an error for these, too.
void require_one_way(const LoraOptions& options, const std::vector<nn::Linear*>& targets) {
  for (const nn::Linear* layer : targets) {
    if (!merely_ends_alike(layer->path(), options.modules_to_save)) continue;
    throw ConfigError(
        "target_modules: found \"{}\", expected other layers: it trains whole, as its name ends "
        "like "
        "one of modules_to_save ({}), and PEFT would not load it with a branch; leave it out",
        layer->path(), fmt::join(options.modules_to_save, ", "));
  }
}

}  // namespace

void require_named_modules(const LoraOptions& options, models::Model& model) {
  if (options.has_virtual_tokens()) return;
  const std::vector<std::string> all_paths = all_module_paths(model);
  require_layers(options, all_paths);
  const TargetLayers targets = find_targets(options, model);
  require_branches(options, targets.layers, model);
  require_one_way(options, targets.layers);
  require_computed_on_experts(options, targets.layers, model);
  require_loadable_on_experts(options, targets.layers, model);
  require_each("target_modules", options.target_modules, all_paths, is_end_of);
  std::vector<std::string> matrices;
  for (const nn::ExpertParameter* each : all_expert_parameters(model))
    matrices.push_back(each->name);
  const auto parameters = find_target_parameters(options, model);
  require_each("target_parameters", options.target_parameters, matrices, is_end_of);
  require_each("exclude_modules", options.exclude_modules, all_paths, is_end_of);
  if (options.exclude_pattern) {
    require_each("exclude_modules", {*options.exclude_pattern}, all_paths, is_matched_by);
  }
  std::vector<std::string> adapted;
  for (const nn::Linear* layer : targets.layers) adapted.push_back(layer->path());
  for (const nn::ExpertParameter* each : parameters) adapted.push_back(each->name);
  if (targets.embedding != nullptr) adapted.push_back(targets.embedding->path());
  if (options.feedforward_modules) {
    // With or without a dot before it, as PEFT matches these.
    require_each(
        "feedforward_modules", *options.feedforward_modules, adapted,
        [](const std::string& path, const std::string& entry) { return path.ends_with(entry); });
  }
  if (options.feedforward_pattern) {
    require_each("feedforward_modules", {*options.feedforward_pattern}, adapted, is_matched_by);
  }
  require_each("rank_pattern", keys_of(options.rank_pattern), adapted, is_key_of);
  require_each("alpha_pattern", keys_of(options.alpha_pattern), adapted, is_key_of);
}

}  // namespace strata::adapters
