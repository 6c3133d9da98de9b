// A LoRA adapter as a GGUF file, which llama.cpp loads beside the file of its base (--lora). Owns:
// which adapters such a file can hold, its keys, names and scale. Never: the base's own tensors
// (tensor_plan.h says what they are called).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "strata/checkpoint/convert/saved_state.h"
#include "strata/checkpoint/gguf/export.h"

namespace strata::checkpoint {

// Writes `out` as convert_to_gguf() does. Of `base` names, shapes and config.json are read.
// llama.cpp scales each branch by one alpha over its rank: that is the one that most branches have,
// and what others are scaled otherwise by (alpha_pattern, use_rslora beside rank_pattern) is folded
// into their B. Memory: the branches of one tensor, fp32.
// Errors: ConfigError for an adapter that is more than LoRA branches, or of layers to which
// llama.cpp applies none; those of AdapterParts, describe_family() and plan_tensors().
std::vector<std::string> convert_adapter_to_gguf(SavedState& base, SavedState& adapter,
                                                 const std::filesystem::path& out,
                                                 const GgufOptions& options);

}  // namespace strata::checkpoint
