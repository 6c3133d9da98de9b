#include "strata/adapters/expert_targets.h"

#include <algorithm>
#include <set>
#include <string>

#include <fmt/ranges.h>

#include "strata/adapters/target_layers.h"
#include "strata/base/error.h"
#include "strata/models/fused_linears.h"

namespace strata::adapters {
namespace {

using Layers = std::vector<nn::Linear*>;

// What is one parameter in the reference, and those of it that are targets; none: no such group.
struct Targeted {
  Layers all, chosen;
};

std::vector<Targeted> targeted_groups(const Layers& layers, models::Model& model) {
  const std::set<nn::Linear*> targets(layers.begin(), layers.end());
  std::vector<Targeted> groups;
  for (models::Block* block : model.blocks()) {
    auto* fused = dynamic_cast<models::HasFusedLinears*>(block);
    if (fused == nullptr) continue;
    for (Layers& group : fused->fused_linears()) {
      Layers chosen;
      std::ranges::copy_if(group, std::back_inserter(chosen),
                           [&](nn::Linear* layer) { return targets.contains(layer); });
      if (!chosen.empty()) groups.push_back({std::move(group), std::move(chosen)});
    }
  }
  return groups;
}

std::string last_name(const nn::Linear& layer) {
  return layer.path().substr(layer.path().rfind('.') + 1);
}

std::set<std::string> last_names(const Layers& layers) {
  std::set<std::string> names;
  for (const nn::Linear* layer : layers) names.insert(last_name(*layer));
  return names;
}

[[noreturn]] void refuse(const std::string& found, const nn::Linear& layer) {
  throw ConfigError(
      "{} on \"{}\", a part of a mixture of experts, expected plain LoRA there, without dropout, "
      "and of one rank, which is what PEFT loads; change it or name the attention's layers alone "
      "(lora_target_modules)",
      found, layer.path());
}

void require_whole(const Targeted& group) {
  if (group.chosen.size() == group.all.size()) return;
  throw ConfigError(
      "target_modules: found {} of {} layers that are one parameter in transformers (\"{}\" is one "
      "of them), expected all or none; name {}",
      group.chosen.size(), group.all.size(), group.chosen[0]->path(),
      fmt::join(last_names(group.all), " and "));
}

// PEFT finds what became parts of parameters by the last name alone.
void require_own_names(const Targeted& group, models::Model& model) {
  std::set<nn::Linear*> fused;
  std::set<std::string> names;
  for (models::Block* block : model.blocks()) {
    auto* has_fused = dynamic_cast<models::HasFusedLinears*>(block);
    if (has_fused == nullptr) continue;
    for (const Layers& each : has_fused->fused_linears()) {
      fused.insert(each.begin(), each.end());
      names.merge(last_names(each));
    }
  }
  for (models::Block* block : model.blocks()) {
    for (nn::Linear* layer : block->linears()) {
      if (fused.contains(layer) || !names.contains(last_name(*layer))) continue;
      throw ConfigError(
          "target_modules: found \"{}\", a part of a mixture of experts in a model that also has "
          "\"{}\", expected other layers: PEFT tells the two apart by no name; name those of the "
          "attention (lora_target_modules), or modules by their paths without these",
          group.chosen[0]->path(), layer->path());
    }
  }
}

// The reference's module around a mixture is "mlp" in every family: a router of another name in the
// file is not found under that name, and an expert never is.
void require_loadable_copies(const LoraOptions& options, models::Model& model) {
  if (options.modules_to_save.empty()) return;
  const std::vector<std::string> copies = weights_to_save(options, model);
  const std::set<std::string> copied(copies.begin(), copies.end());
  for (models::Block* block : model.blocks()) {
    auto* fused = dynamic_cast<models::HasFusedLinears*>(block);
    if (fused == nullptr) continue;
    for (const Layers& group : fused->fused_linears()) {
      const bool is_kept = group.size() == 1 && group[0]->path().ends_with(".mlp.gate");
      for (const nn::Linear* layer : group) {
        if (is_kept || !copied.contains(layer->weight().name())) continue;
        throw ConfigError(
            "modules_to_save: found \"{}\", a part of a mixture of experts, which PEFT would not "
            "find under this name, expected other modules; target it with LoRA "
            "(lora_target_modules)",
            layer->path());
      }
    }
  }
}

}  // namespace

void require_computed_on_experts(const LoraOptions& options, const Layers& layers,
                                 models::Model& model) {
  const auto groups = targeted_groups(layers, model);
  if (groups.empty()) return;
  const nn::Linear& layer = *groups[0].chosen[0];
  if (options.method == Method::kIa3) refuse("peft_type: found IA3", layer);
  if (options.method == Method::kVera) refuse("peft_type: found VERA", layer);
  if (options.use_dora) refuse("use_dora: found true", layer);
  if (options.lora_bias) refuse("lora_bias: found true", layer);
}

void require_no_dropout_on_experts(const LoraOptions& options, const Layers& layers,
                                   models::Model& model) {
  const auto groups = targeted_groups(layers, model);
  if (groups.empty() || options.dropout == 0) return;
  refuse(fmt::format("lora_dropout: found {}", options.dropout), *groups[0].chosen[0]);
}

void require_loadable_on_experts(const LoraOptions& options, const Layers& layers,
                                 models::Model& model) {
  require_loadable_copies(options, model);
  require_no_dropout_on_experts(options, layers, model);
  const auto groups = targeted_groups(layers, model);
  // Where a name means the experts alone, other layers of it were never targets.
  if (!groups.empty() && !model.names_mean_experts()) require_own_names(groups[0], model);
  for (const Targeted& group : groups) {
    require_whole(group);
    const nn::Linear& layer = *group.chosen[0];
    if (options.use_rslora) refuse("use_rslora: found true", layer);
    if (options.init != "true" && options.init != "false" && options.init != "gaussian") {
      refuse(fmt::format("init_lora_weights: found {}", options.init), layer);
    }
    for (const nn::Linear* each : group.chosen) {
      if (rank_of(options, each->path()) != options.r) refuse("rank_pattern: found a rank", *each);
      if (alpha_of(options, each->path()) != options.alpha) {
        refuse("alpha_pattern: found a value", *each);
      }
    }
  }
}

}  // namespace strata::adapters
