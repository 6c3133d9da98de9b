// Files of torch.save for convert(): weights, and the optimizer's state as accelerate saves it.
// Owns: their trees of keys. Never: which weights and under which names.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "strata/base/file_system.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/checkpoint/convert/weight_reader.h"

namespace strata::checkpoint {

// A weight's place in the state's list and a name that it has in a file.
struct NamedPlace {
  size_t place;
  std::string name;
};

// {name: tensor}. Errors: those of writing, and of reading the state.
void write_torch_weights(const SavedState& state, const std::vector<NamedPlace>& weights,
                         const std::filesystem::path& file, WeightReader& reader,
                         FileSystem& files);

// {"state": {weight: {"step": ..., kind: ...}}, "param_groups": [...]}; `of_optimizer`: places of
// its tensors.
void write_torch_optimizer(const SavedState& state, const std::vector<size_t>& of_optimizer,
                           const std::filesystem::path& file, WeightReader& reader,
                           FileSystem& files);

}  // namespace strata::checkpoint
