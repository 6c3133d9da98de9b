// The rotary positions of a model as keys and tensors of a GGUF file. Never: frequencies
// (nn/attention/rope.h).
#pragma once

#include "strata/checkpoint/gguf/family.h"
#include "strata/nn/attention/rope.h"

namespace strata::checkpoint {

// Adds them to the family. ConfigError for a kind that llama.cpp does not have there.
void describe_rotation(const nn::RopeOptions& rope, GgufFamily& family);

}  // namespace strata::checkpoint
