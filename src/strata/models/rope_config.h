// The rotary positions of a checkpoint, read from config.json's "rope_scaling" or "rope_parameters"
// and checked. Owns: keys, defaults and relations of every kind. Never: frequencies
// (nn/attention/rope.h). Source: transformers modeling_rope_utils.py.
#pragma once

#include <cstdint>
#include <optional>

#include "strata/models/config_reader.h"
#include "strata/nn/attention/rope.h"

namespace strata::models {

struct RopeShape {
  int64_t head_dim;
  int64_t max_position_embeddings;
  double default_theta = 10000.0;
  // Where the file has no partial_rotary_factor; nothing: all channels turn.
  std::optional<double> default_part = {};
  const char* key = "head_dim";  // of the file, which says head_dim
};

// FormatError naming the key for values that are missing, of the wrong type, or contradict each
// other; ConfigError for kinds of positions that are not computed, for settings by type of layer,
// and, unless the shape has a default for it, for a partial_rotary_factor, which the reference's
// Llama cannot compute either.
nn::RopeOptions parse_rope(const ConfigReader& config, const RopeShape& shape);

// What DeepSeek multiplies the scores by beside 1 / sqrt of a key's channels: the square of YaRN's
// factor for mscale_all_dim, where the rotation is scaled.
double parse_score_scale(const ConfigReader& config);

// As parse_rope() for Phi-3: longrope, which older files call su or yarn, or none;
// partial_rotary_factor says how many channels of a head turn.
nn::RopeOptions parse_phi3_rope(const ConfigReader& config, const RopeShape& shape);

// The same of GPT-NeoX: every kind; rotary_pct (or partial_rotary_factor among the rope's settings)
// says how many channels of a head turn, a quarter where nothing does, rotary_emb_base by what.
nn::RopeOptions parse_gpt_neox_rope(const ConfigReader& config, const RopeShape& shape);

}  // namespace strata::models
