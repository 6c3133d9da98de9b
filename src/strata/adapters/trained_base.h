// Weights of the base that train beside what an adapter attaches: biases, modules_to_save, tied
// ones under both their names. Owns: making them trainable, their names in the adapter's file.
// Never: which modules_to_save means (target_layers.h), rows of single tokens (token_embedding.h).
#pragma once

#include <string>
#include <vector>

#include "strata/adapters/lora.h"

namespace strata::adapters {

// Makes the biases trainable that options.bias asks for: of the layers that have a branch, or all,
// those of norms after those of layers; but for those of `saved`, the weights of modules_to_save.
// Requires: the branches are attached.
std::vector<AdapterTensor> train_biases(const LoraOptions& options, models::Model& model,
                                        const std::vector<std::string>& saved);

// Makes `saved`, the weights of modules_to_save, trainable and appends them to `tensors`: copies of
// their own, and in place what stays tied (ensure_weight_tying).
void train_saved_modules(const LoraOptions& options, models::Model& model,
                         const std::vector<std::string>& saved,
                         std::vector<AdapterTensor>& tensors);

// Appends it unless one of its name is there.
void add_once(std::vector<AdapterTensor>& tensors, AdapterTensor tensor);

}  // namespace strata::adapters
