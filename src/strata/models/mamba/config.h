// The settings of layers of Mamba-2 in families that have attention in other layers or beside it.
// Owns: the keys that begin with mamba_. Never: which layers have one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"
#include "strata/nn/linear_attention/state_space.h"
#include "strata/nn/linear_attention/time_steps.h"

namespace strata::models {

// What stands after the state space.
enum class MambaEnd { kGateThenNorm, kNormThenGate, kGateAlone };

// The range in which time steps begin, drawn where the family's do not begin alike.
struct FirstSteps {
  double least, most, floor;
};

struct MambaConfig {
  std::string module = "mamba";  // in the layer
  nn::StateSpaceShape shape{};
  int64_t hidden_size = 0;
  int64_t conv_size = 4;
  bool conv_bias = true;
  bool bias = false;      // of the product before
  bool out_bias = false;  // of the product after
  nn::StepLimits limits = {};
  MambaEnd end = MambaEnd::kGateThenNorm;
  double eps = 1e-6;  // of the norm
  // Of gate, x, B, C and steps, as the product before gives them; empty: none.
  std::vector<double> multipliers = {};
  double residual_multiplier = 1.0;
  std::optional<FirstSteps> first_steps = {};
  // The weight of the product after begins in a range that this number of layers narrows; none: as
  // all others.
  std::optional<int64_t> narrowed_by = {};
  bool out_is_no_target = false;  // PEFT adapts the product after in no model of the family

  // Those that pass the convolution: x, B and C.
  int64_t conv_channels() const { return shape.channels() + 2 * shape.group_channels(); }
};

// The channels of all heads, and what config.json calls them.
struct MambaWidth {
  int64_t channels;
  std::string name;
};
MambaWidth expanded_width(const ConfigReader& config, const LlamaConfig& llama);

// Errors: as parse_llama_config(). `llama`: what the family shares with its other layers.
MambaConfig parse_mamba_config(const ConfigReader& config, const LlamaConfig& llama,
                               const MambaWidth& width);

// FormatError unless heads are in groups of one size. Keys as the family calls them.
void check_mamba_groups(const MambaConfig& c, const std::string& groups_key,
                        const std::string& heads_key);

}  // namespace strata::models
