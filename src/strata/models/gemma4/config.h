// The settings of a text model of Gemma 4, read from config.json and checked. Owns: names, defaults
// and relations of the keys. Never: weights. Source: transformers configuration_gemma4.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/models/llama/config.h"

namespace strata::models {

// What a layer does with keys and values: its own; its own, which later layers read; an earlier
// layer's of the same kind.
enum class KeysOf { kOwn, kShared, kEarlier };

struct Gemma4Layer {
  bool is_global = false;  // no window, and the rotation of global layers
  int64_t head_dim = 256;
  int64_t num_key_value_heads = 4;
  bool has_values = true;  // false: values are made from what k_proj gives
  KeysOf keys = KeysOf::kOwn;
  int64_t cache_layer = 0;  // whose place in the cache holds the keys that it reads
  int64_t intermediate_size = 9216;
};

// Beside the MLP of each layer.
struct Gemma4Experts {
  int64_t count;
  int64_t per_token;
  int64_t intermediate_size;
};

struct Gemma4Config {
  LlamaConfig llama;  // what all layers share; of its rotations `local_rope` is always there
  std::vector<Gemma4Layer> layers;
  // Channels of a token's vector for each layer, from a table of its own; 0: there is none.
  int64_t per_layer_size = 256;
  int64_t per_layer_vocab_size = 262144;
  std::optional<Gemma4Experts> experts = {};
};

Gemma4Config parse_gemma4_config(const Json& config);

}  // namespace strata::models
