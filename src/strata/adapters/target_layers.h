// Which layers of a model LoRA settings mean. Owns: the rules of PEFT's LoraConfig over a whole
// model (names alone: module_match.h). Never: attaching.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/adapters/lora.h"
#include "strata/hf/module_pattern.h"
#include "strata/models/model.h"

namespace strata::adapters {

struct TargetLayers {
  std::vector<nn::Linear*> layers;  // in module order
  nn::Embedding* embedding = nullptr;
  // What adapter_config.json's target_modules holds; empty where an expression matches, or where
  // target_parameters alone say what is adapted.
  std::vector<std::string> list;
};

// ConfigError that lists the modules when nothing matches and no parameter is named, or when more
// than linear layers do.
TargetLayers find_targets(const LoraOptions& options, models::Model& model);

// Modules that target_modules names and modules_to_save trains whole, so that they have no branch.
std::vector<std::string> targets_that_train_whole(const LoraOptions& options, models::Model& model);

// Whether the settings may mean a layer, by its path alone: true where they leave the choice to the
// model (all linear layers, its family's default).
bool may_target(const LoraOptions& options, const std::string& path);

// Paths of all modules of a model, in order.
std::vector<std::string> all_module_paths(models::Model& model);

// The layers that modules belong to, by PEFT's expressions.
class LayerNumbers {
 public:
  // `names`: layers_pattern, expressions in Python's syntax for what stands before the number;
  // empty: any segment that has another before it.
  explicit LayerNumbers(const std::vector<std::string>& names);
  // The first number with something after it; nothing outside of the layers.
  std::optional<int64_t> of(const std::string& path) const;

 private:
  std::vector<std::unique_ptr<hf::ModulePattern>> patterns_;
};

// Names of the base's weights inside modules_to_save. ConfigError for an entry without a match.
std::vector<std::string> weights_to_save(const LoraOptions& options, models::Model& model);

// Rank and alpha of one layer, by its path.
int64_t rank_of(const LoraOptions& options, const std::string& path);
double alpha_of(const LoraOptions& options, const std::string& path);
// What the product of such a branch is multiplied by.
double scaling_of(const LoraOptions& options, const std::string& path, int64_t rank);

}  // namespace strata::adapters
