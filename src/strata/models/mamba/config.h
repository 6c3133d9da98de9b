// The settings of layers of Mamba-2 in families that have attention in other layers. Owns: the keys
// that begin with mamba_. Never: which layers have one.
#pragma once

#include <cstdint>
#include <string>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"
#include "strata/nn/linear_attention/state_space.h"
#include "strata/nn/linear_attention/time_steps.h"

namespace strata::models {

struct MambaConfig {
  std::string module = "mamba";  // in the layer
  nn::StateSpaceShape shape{};
  int64_t hidden_size = 0;
  int64_t conv_size = 4;
  bool conv_bias = true;
  bool bias = false;  // of the products before and behind
  nn::StepLimits limits = {};
  double eps = 1e-6;  // of the norm
  double residual_multiplier = 1.0;

  // Those that pass the convolution: x, B and C.
  int64_t conv_channels() const { return shape.channels() + 2 * shape.group_channels(); }
};

// Errors: as parse_llama_config(). `llama`: what the family shares with its other layers.
MambaConfig parse_mamba_config(const ConfigReader& config, const LlamaConfig& llama);

}  // namespace strata::models
