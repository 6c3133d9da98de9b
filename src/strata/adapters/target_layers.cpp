#include "strata/adapters/target_layers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/ranges.h>

#include "strata/adapters/module_match.h"
#include "strata/adapters/token_embedding.h"
#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/fused_linears.h"
#include "strata/models/reward_head.h"
#include "strata/nn/linear.h"

namespace strata::adapters {

namespace {

constexpr std::string_view kExperts = ".experts.";

// Weights of experts that are no layers but parameters in the reference, in families where no name
// of a layer means them.
std::set<std::string> nameless_experts(models::Model& model) {
  std::set<std::string> names;
  for (models::Block* block : model.blocks()) {
    auto* fused = dynamic_cast<models::HasFusedLinears*>(block);
    if (fused == nullptr) continue;
    const std::vector<nn::Linear*> layers = block->linears();
    const std::set<nn::Linear*> known(layers.begin(), layers.end());
    for (const auto& group : fused->fused_linears()) {
      for (nn::Linear* layer : group) {
        const bool is_expert = layer->path().find(kExperts) != std::string::npos;
        if (is_expert && !known.contains(layer)) names.insert(layer->weight().name());
      }
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> all_module_paths(models::Model& model) {
  const std::set<std::string> nameless = nameless_experts(model);
  std::vector<std::string> names;
  for (const nn::Parameter* parameter : model.parameters()) {
    const std::string& name = parameter->name();
    const size_t end =
        nameless.contains(name) ? name.find(kExperts) + kExperts.size() : name.size();
    names.push_back(name.substr(0, end));
  }
  // A tied output layer owns no weight but is a module.
  for (models::Block* block : model.blocks()) {
    for (const nn::Linear* layer : block->linears()) names.push_back(layer->path() + ".weight");
  }
  return module_paths(names);
}

LayerNumbers::LayerNumbers(const std::vector<std::string>& names) {
  constexpr const char* kNumber = R"(\.(?P<idx>\d+)\..*)";
  const auto add = [&](const std::string& before) {
    patterns_.push_back(std::make_unique<hf::ModulePattern>(before + kNumber, "layers_pattern"));
  };
  if (names.empty()) add(R"(.*?\.[^.]*)");
  for (const std::string& name : names) add(R"((?:^|.*?\.))" + name);
}

std::optional<int64_t> LayerNumbers::of(const std::string& path) const {
  for (const auto& pattern : patterns_) {
    const auto text = pattern->group(path, "idx");
    if (!text) continue;
    int64_t number = -1;
    const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error == std::errc()) return number;
  }
  return {};
}

namespace {

// PEFT shortens lists of at least this many names.
constexpr size_t kLongList = 20;
constexpr const char* kOutputLayer = "lm_head";

std::map<std::string, nn::Linear*> linears_by_path(models::Model& model,
                                                   std::vector<std::string>* order) {
  std::map<std::string, nn::Linear*> linears;
  for (models::Block* block : model.blocks()) {
    for (nn::Linear* layer : block->linears()) {
      linears[layer->path()] = layer;
      order->push_back(layer->path());
    }
  }
  std::ranges::stable_sort(*order, {},
                           [&](const std::string& path) { return model.module_place(path + "."); });
  return linears;
}

bool is_all_linear(const LoraOptions& options) {
  std::string text = options.target_pattern.value_or("");
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text == "all-linear";
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::set<std::string> last_names(const std::vector<std::string>& paths) {
  std::set<std::string> names;
  for (const std::string& path : paths) names.insert(last_name(path));
  return names;
}

// The list that stands for the settings; empty where an expression matches instead.
std::vector<std::string> target_list(const LoraOptions& options, models::Model& model,
                                     const std::vector<std::string>& linear_paths,
                                     const std::vector<std::string>& all_paths) {
  std::vector<std::string> targets;
  if (is_all_linear(options)) {
    for (const std::string& path : linear_paths) {
      const bool is_head =
          path == kOutputLayer || path == models::kRewardLayer || path == models::kClassifier;
      // PEFT does not load an adapter with a branch on a layer that it takes for a saved one, too.
      if (!is_head && !merely_ends_alike(path, options.modules_to_save)) targets.push_back(path);
    }
  } else if (!options.target_pattern.has_value()) {
    targets = options.target_modules;
    if (targets.empty()) {
      targets = options.method == Method::kIa3    ? model.default_ia3_targets()
                : options.method == Method::kVera ? model.default_vera_targets()
                                                  : model.default_lora_targets();
    }
    if (targets.empty() && options.target_parameters.empty()) {
      throw ConfigError(
          "target_modules: found nothing, and the model's family has no default, expected names of "
          "layers; pass --target_modules");
    }
  }
  if (is_all_linear(options) && options.method == Method::kLora && model.names_mean_experts()) {
    const std::set<std::string> names = last_names(targets);
    return {names.begin(), names.end()};
  }
  if (targets.size() < kLongList) return targets;
  std::vector<std::string> others;
  const NameList names(targets);
  for (const std::string& path : all_paths) {
    if (!names.matches(path)) others.push_back(path);
  }
  std::vector<std::string> shorter = minimal_suffixes(targets, others);
  return shorter.size() < targets.size() ? shorter : targets;
}

bool is_wanted_layer(const std::string& path, const LoraOptions& options,
                     const std::vector<std::string>& targets, const LayerNumbers& numbers) {
  if (options.layers_to_transform.empty()) return true;
  // A module that is named in full is taken whatever its layer.
  if (std::find(targets.begin(), targets.end(), path) != targets.end()) return true;
  const auto index = numbers.of(path);
  const auto& wanted = options.layers_to_transform;
  return index && std::find(wanted.begin(), wanted.end(), *index) != wanted.end();
}

std::vector<std::string> matching_paths(const LoraOptions& options,
                                        const std::vector<std::string>& targets,
                                        const std::vector<std::string>& all_paths) {
  std::unique_ptr<hf::ModulePattern> pattern, excluded;
  if (targets.empty()) pattern = std::make_unique<hf::ModulePattern>(*options.target_pattern);
  if (options.exclude_pattern)
    excluded = std::make_unique<hf::ModulePattern>(*options.exclude_pattern);
  const LayerNumbers numbers(options.layers_pattern);
  const NameList names(targets);
  std::vector<std::string> matched;
  for (const std::string& path : all_paths) {
    if (is_inside(path, options.modules_to_save)) continue;
    if (excluded ? excluded->matches(path) : matches_list(path, options.exclude_modules)) continue;
    if (pattern ? pattern->matches(path)
                : names.matches(path) && is_wanted_layer(path, options, targets, numbers)) {
      matched.push_back(path);
    }
  }
  return matched;
}

// The layers that are parts of parameters in the reference, by their last names.
std::map<std::string, std::set<std::string>> fused_paths(models::Model& model) {
  std::map<std::string, std::set<std::string>> paths;
  for (models::Block* block : model.blocks()) {
    auto* fused = dynamic_cast<models::HasFusedLinears*>(block);
    if (fused == nullptr) continue;
    for (const auto& group : fused->fused_linears()) {
      for (const nn::Linear* layer : group) paths[last_name(layer->path())].insert(layer->path());
    }
  }
  return paths;
}

// Takes layers off that are called as experts are, where such a name means those alone.
void leave_names_to_experts(const LoraOptions& options, models::Model& model,
                            std::vector<std::string>& matched) {
  if (options.method != Method::kLora || !model.names_mean_experts()) return;
  const auto of_experts = fused_paths(model);
  std::set<std::string> adapted;  // names of experts that are targets
  std::vector<std::string> kept, others;
  for (const std::string& path : matched) {
    const auto found = of_experts.find(last_name(path));
    const bool is_fused = found != of_experts.end() && found->second.contains(path);
    if (is_fused) adapted.insert(found->first);
    (found == of_experts.end() || is_fused ? kept : others).push_back(path);
  }
  for (const std::string& path : others) {
    if (adapted.contains(last_name(path))) continue;
    throw ConfigError(
        "target_modules: found \"{}\", expected layers of other names: to PEFT \"{}\" means the "
        "experts alone in this model; name those of the attention, or the experts as a whole "
        "(gate_proj, up_proj, down_proj)",
        path, last_name(path));
  }
  matched = std::move(kept);
}

std::string described_target(const LoraOptions& options, const std::vector<std::string>& targets) {
  return targets.empty() ? "\"" + *options.target_pattern + "\""
                         : fmt::format("[{}]", fmt::join(targets, ", "));
}

std::vector<std::string> targeted_linears(const LoraOptions& options,
                                          const std::vector<std::string>& targets,
                                          const std::vector<std::string>& all_paths,
                                          const std::map<std::string, nn::Linear*>& linears,
                                          const nn::Embedding* embedding) {
  std::vector<std::string> matched = matching_paths(options, targets, all_paths);
  for (const std::string& path : matched) {
    if (linears.contains(path)) continue;
    const bool is_embedding = embedding != nullptr && path == embedding->path();
    if (is_embedding && options.method == Method::kLora) continue;
    throw ConfigError(
        "target_modules: found {} matching \"{}\", expected linear layers{}; name the layers "
        "inside it or use \"all-linear\"",
        described_target(options, targets), path,
        embedding != nullptr ? " and, with LoRA, the embedding" : "");
  }
  if (matched.empty() && options.target_parameters.empty()) {
    std::set<std::string> names;
    for (const auto& [path, layer] : linears) names.insert(last_name(path));
    throw ConfigError(
        "target_modules: found no module matching {}, expected some of {}; name at "
        "least one of them",
        described_target(options, targets), fmt::join(names, ", "));
  }
  return matched;
}

template <typename T>
T first_match(const std::vector<std::pair<std::string, T>>& patterns, const std::string& path,
              T otherwise) {
  for (const auto& [expression, value] : patterns) {
    if (hf::ModulePattern("(.*\\.)?(" + expression + ")").matches(path)) return value;
  }
  return otherwise;
}

}  // namespace

TargetLayers find_targets(const LoraOptions& options, models::Model& model) {
  std::vector<std::string> linear_paths;
  const auto linears = linears_by_path(model, &linear_paths);
  const auto all_paths = all_module_paths(model);
  TargetLayers found;
  found.list = target_list(options, model, linear_paths, all_paths);
  if (found.list.empty() && !options.target_pattern) return found;  // parameters alone
  nn::Embedding* embedding = find_embedding(model);
  auto matched = targeted_linears(options, found.list, all_paths, linears, embedding);
  leave_names_to_experts(options, model, matched);
  const std::set<std::string> paths(matched.begin(), matched.end());
  const auto is_matched = [&](const std::string& path) { return paths.contains(path); };
  if (embedding != nullptr && is_matched(embedding->path())) found.embedding = embedding;
  for (const std::string& path : linear_paths) {
    if (is_matched(path)) found.layers.push_back(linears.at(path));
  }
  return found;
}

std::vector<std::string> targets_that_train_whole(const LoraOptions& options,
                                                  models::Model& model) {
  if (options.target_modules.empty()) return {};
  LoraOptions alone = options;
  alone.modules_to_save.clear();
  std::vector<std::string> found =
      matching_paths(alone, options.target_modules, all_module_paths(model));
  std::erase_if(found,
                [&](const std::string& path) { return !is_inside(path, options.modules_to_save); });
  return found;
}

bool may_target(const LoraOptions& options, const std::string& path) {
  const bool is_named =
      options.target_pattern ? !is_all_linear(options) : !options.target_modules.empty();
  return !is_named || !matching_paths(options, options.target_modules, {path}).empty();
}

int64_t rank_of(const LoraOptions& options, const std::string& path) {
  return first_match(options.rank_pattern, path, options.r);
}

double alpha_of(const LoraOptions& options, const std::string& path) {
  return first_match(options.alpha_pattern, path, options.alpha);
}

double scaling_of(const LoraOptions& options, const std::string& path, int64_t rank) {
  const auto r = static_cast<double>(rank);
  return alpha_of(options, path) / (options.use_rslora ? std::sqrt(r) : r);
}

// The base's weights inside the named modules. PEFT matches the ends of paths, with or without dot.
std::vector<std::string> weights_to_save(const LoraOptions& options, models::Model& model) {
  const std::vector<std::string> all_paths = all_module_paths(model);
  const auto is_document_head = [](const std::string& name) {
    return name == models::kRewardLayer || name == models::kClassifier;
  };
  const auto head = std::ranges::find_if(all_paths, is_document_head);
  std::vector<std::string> modules;
  for (const std::string& entry : options.modules_to_save) {
    const size_t before = modules.size();
    for (const std::string& path : all_paths) {
      if (path.ends_with(entry)) modules.push_back(path);
    }
    // PEFT names both heads that transformers' classes for sequences have.
    const bool is_other_head = is_document_head(entry) &&
                               std::ranges::count_if(options.modules_to_save, is_document_head) > 1;
    if (modules.size() == before && !is_other_head) {
      throw ConfigError(
          "modules_to_save: found no module whose path ends with \"{}\", expected "
          "names such as {}, embed_tokens, norm; correct it",
          entry, head == all_paths.end() ? kOutputLayer : *head);
    }
  }
  std::vector<std::string> weights;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name) {
    for (const std::string& module : modules) {
      if (name.starts_with(module + ".") && seen.insert(name).second) weights.push_back(name);
    }
  };
  for (const nn::Parameter* parameter : model.parameters()) {
    if (!parameter->name().starts_with(hf::kAdapterKeyPrefix)) add(parameter->name());
  }
  add(std::string(kOutputLayer) + ".weight");
  return weights;
}

}  // namespace strata::adapters
