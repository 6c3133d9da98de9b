// Parameters that get low-rank branches by their names (PEFT's target_parameters): those of all
// experts of a mixture. Owns: which are meant, the names of their branches, what PEFT refuses
// there. Never: the products (nn/experts/expert_branch.h). Source: PEFT tuners/tuners_utils.py
// (_inject_parameters), tuners/lora/layer.py (ParamWrapper).
#pragma once

#include <string>
#include <vector>

#include "strata/adapters/lora.h"
#include "strata/models/model.h"

namespace strata::adapters {

// Those that options.target_parameters mean, in module order. ConfigError for one of another kind,
// for a model without such parameters, and for settings that PEFT refuses for them: dropout, DoRA,
// biases, first values of the base, modules_to_save that hold them.
std::vector<nn::ExpertParameter*> find_target_parameters(const LoraOptions& options,
                                                         models::Model& model);

// All parameters of a model that could be named.
std::vector<nn::ExpertParameter*> all_expert_parameters(models::Model& model);

// Beginnings of the names of the branches' weights in the adapter's file, one for each of `names`,
// all parameters that are targets. Branches of one module are wrapped around each other, that of
// the reference's last parameter outside.
std::vector<std::string> branch_paths(const std::vector<std::string>& names);

// Gives each a branch (fp32). ConfigError for a rank larger than a matrix.
void attach_branches(const std::vector<nn::ExpertParameter*>& targets, const LoraOptions& options);

}  // namespace strata::adapters
