#include "strata/adapters/target_parameters.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "strata/adapters/module_match.h"
#include "strata/adapters/target_layers.h"
#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/fused_linears.h"

namespace strata::adapters {
namespace {

using Matrices = std::vector<nn::ExpertParameter*>;

std::string module_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

// The ends of names by which they are targeted in all layers.
std::string described(const Matrices& all) {
  std::set<std::string> names;
  for (const nn::ExpertParameter* matrices : all) {
    names.insert("experts." + matrices->name.substr(matrices->name.rfind('.') + 1));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// A parameter of another kind would be left as it is, where PEFT gives it a branch.
void require_experts_alone(const LoraOptions& options, const Matrices& all, models::Model& model) {
  std::set<const nn::Parameter*> of_experts;
  for (const nn::ExpertParameter* matrices : all) {
    of_experts.insert(matrices->weights.begin(), matrices->weights.end());
  }
  for (const nn::Parameter* parameter : model.parameters()) {
    if (of_experts.contains(parameter)) continue;
    for (const std::string& entry : options.target_parameters) {
      if (!matches_list(parameter->name(), {entry})) continue;
      throw ConfigError(
          "target_parameters: found \"{}\" matching \"{}\", expected the matrices of experts: {}; "
          "name linear layers in target_modules, and what is to train whole in modules_to_save",
          entry, parameter->name(), described(all));
    }
  }
}

void require_supported(const LoraOptions& options) {
  const auto refuse = [](const std::string& found, const char* expected) {
    throw ConfigError(
        "{} with target_parameters, expected {} there, as in PEFT; change it or target only linear "
        "layers",
        found, expected);
  };
  if (options.dropout != 0) refuse(fmt::format("lora_dropout: found {}", options.dropout), "0");
  if (options.use_dora) refuse("use_dora: found true", "false");
  if (options.lora_bias) refuse("lora_bias: found true", "false");
  const std::string& init = options.init;
  if (init != "true" && init != "false" && init != "gaussian" && init != "eva") {
    refuse(fmt::format("init_lora_weights: found {}", init), "true, false or gaussian");
  }
}

void require_not_saved_whole(const LoraOptions& options, const Matrices& targets,
                             models::Model& model) {
  if (options.modules_to_save.empty()) return;
  const std::vector<std::string> saved = weights_to_save(options, model);
  for (const nn::ExpertParameter* matrices : targets) {
    for (const nn::Parameter* weight : matrices->weights) {
      if (std::ranges::find(saved, weight->name()) == saved.end()) continue;
      throw ConfigError(
          "modules_to_save: found \"{}\" trained whole, which target_parameters gives a branch, "
          "expected one of them; remove one",
          weight->name());
    }
  }
}

}  // namespace

Matrices all_expert_parameters(models::Model& model) {
  Matrices all;
  for (models::Block* block : model.blocks()) {
    auto* fused = dynamic_cast<models::HasFusedLinears*>(block);
    if (fused == nullptr) continue;
    for (nn::ExpertParameter* matrices : fused->expert_parameters()) all.push_back(matrices);
  }
  return all;
}

Matrices find_target_parameters(const LoraOptions& options, models::Model& model) {
  if (options.target_parameters.empty()) return {};
  const Matrices all = all_expert_parameters(model);
  if (all.empty()) {
    throw ConfigError(
        "target_parameters: found [{}] for a model without parameters of experts, expected "
        "none; name linear layers in target_modules",
        fmt::join(options.target_parameters, ", "));
  }
  require_experts_alone(options, all, model);
  Matrices targets;
  std::ranges::copy_if(all, std::back_inserter(targets), [&](const nn::ExpertParameter* matrices) {
    return matches_list(matrices->name, options.target_parameters);
  });
  if (targets.empty()) {
    throw ConfigError(
        "target_parameters: found no parameter matching [{}], expected some of {}, or these after "
        "the number of a layer; name at least one of them",
        fmt::join(options.target_parameters, ", "), described(all));
  }
  require_supported(options);
  require_not_saved_whole(options, targets, model);
  return targets;
}

std::vector<std::string> branch_paths(const std::vector<std::string>& names) {
  std::vector<size_t> inwards(names.size());
  std::iota(inwards.begin(), inwards.end(), size_t{0});
  // Every class of the reference has gate and up, or up alone, first.
  std::ranges::stable_partition(inwards, [&](size_t i) { return !names[i].ends_with("up_proj"); });
  std::vector<std::string> paths(names.size());
  std::map<std::string, std::string> next;  // by module
  for (const size_t i : inwards) {
    const std::string module = module_of(names[i]);
    std::string& path = next.try_emplace(module, module).first->second;
    paths[i] = hf::kAdapterKeyPrefix + path;
    path += ".base_layer";
  }
  return paths;
}

void attach_branches(const Matrices& targets, const LoraOptions& options) {
  std::vector<std::string> names;
  for (const nn::ExpertParameter* matrices : targets) names.push_back(matrices->name);
  const std::vector<std::string> paths = branch_paths(names);
  for (size_t i = 0; i < targets.size(); ++i) {
    nn::ExpertParameter& matrices = *targets[i];
    const int64_t rank = rank_of(options, matrices.name);
    const int64_t most = std::min(matrices.in_features, matrices.out_features);
    if (rank > most) {
      throw ConfigError(
          "lora_r: found {} for the experts of \"{}\", whose matrices are {} by {}, expected at "
          "most {}; choose a smaller rank, or one for this parameter with rank_pattern",
          rank, matrices.name, matrices.in_features, matrices.out_features, most);
    }
    const int64_t rows = rank * matrices.num_experts;
    matrices.branch = std::unique_ptr<nn::ExpertBranch>(new nn::ExpertBranch{
        .a = {paths[i] + ".lora_A.weight", {rows, matrices.in_features}, at::kFloat},
        .b = {paths[i] + ".lora_B.weight", {matrices.out_features, rows}, at::kFloat},
        .num_experts = matrices.num_experts,
        .scaling = scaling_of(options, matrices.name, rank)});
  }
}

}  // namespace strata::adapters
