// Which tensors of a base have branches in the GGUF file of an adapter, and how llama.cpp's one
// scale becomes each branch's own. Owns: which adapters such a file can hold. Never: values
// (adapter.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/adapters/lora.h"
#include "strata/checkpoint/convert/adapter_parts.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/checkpoint/gguf/tensor_plan.h"

namespace strata::checkpoint {

// A tensor of the base's file with a branch; of experts with one for each of its sources.
struct PlannedBranch {
  PlannedTensor base;
  int64_t rank = 0;            // the largest of the sources'
  bool is_embedding = false;   // A is looked up by tokens
  std::vector<float> factors;  // a source: by what its B is multiplied; 0: it may have no branch
};

struct AdapterPlan {
  std::string architecture;
  float alpha = 0;                      // llama.cpp scales each branch by it over its rank
  std::vector<PlannedBranch> branches;  // in the order of the base's file
  int64_t num_folded = 0;               // sources with another scale than that
};

// What adapter_config.json says; `notes`: what is not known of it. ConfigError for methods and
// first values of which no such file can be made.
adapters::LoraOptions gguf_settings_of(const SavedState& adapter, std::vector<std::string>& notes);

// `config`: the base's. ConfigError for an adapter that is more than LoRA branches, or of layers to
// which llama.cpp applies none; errors of describe_family() and plan_tensors().
AdapterPlan plan_adapter(SavedState& base, const Json& config, const SavedState& adapter,
                         const AdapterParts& parts, const adapters::LoraOptions& settings);

}  // namespace strata::checkpoint
