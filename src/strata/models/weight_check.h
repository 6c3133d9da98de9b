// Compares the tensors of a checkpoint with those a model expects. Owns: the messages. Never: which
// names a family expects.
#pragma once

#include <string>
#include <vector>

#include "strata/hf/model_folder.h"
#include "strata/models/model.h"

namespace strata::models {

// `names`: the tensor names under which the weight may be stored, best first. Of a weight with
// several (tied) names all may be in the file.
struct ExpectedWeight {
  const nn::Parameter* parameter;
  std::vector<std::string> names;
};

// FormatError listing what is missing, of another shape, or not expected; at most a few names each.
// Tensors whose name ends with one of `ignored_suffixes`, or begins with one of `ignored_prefixes`,
// may be there or not.
WeightSources match_weights(const hf::ModelFolder& folder,
                            const std::vector<ExpectedWeight>& expected,
                            const std::vector<std::string>& ignored_suffixes,
                            const std::vector<std::string>& ignored_prefixes = {});

// The tensor of that name, or the codes of a weight that the folder holds in integers; null when
// absent. Errors: as hf::find_int_weight().
const hf::TensorInfo* find_weight(const hf::ModelFolder& folder, const std::string& name);

// Whether two tensors of the folder have the same type, shape and bytes.
bool same_values(const hf::ModelFolder& folder, const hf::TensorInfo& a, const hf::TensorInfo& b);

}  // namespace strata::models
