// The list of model families: for each "model_type" how its model is created and what else is known
// of it by name. Owns: that list. Never: what callers ask of it (registry.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/models/model.h"
#include "strata/models/registry.h"

namespace strata::models {

struct Family {
  std::unique_ptr<Model> (*create)(const Json& config, const ModelOptions& options);
  // transformers' class of such models that look at whole documents; null: none.
  const char* classifier;
  bool has_encoder = false;
  const char* head_dense = nullptr;  // of an encoder alone: the weight of its head's first layer
  // Null: it computes positions.
  std::optional<PositionTable> (*position_table)(const Json& config) = nullptr;
  bool experts_are_transposed = false;  // matrices of all experts are [experts, in, out]
  std::vector<ExpertLayerName> expert_layers = {};
};

// By model_type.
const std::map<std::string, Family>& families();

}  // namespace strata::models
