// The settings of Bamba, read from config.json and checked: Mamba-2 in most layers, attention that
// turns half of its channels in others. Owns: names, defaults and relations of the keys. Never:
// weights. Source: transformers configuration_bamba.py.
#pragma once

#include <vector>

#include "strata/models/llama/config.h"
#include "strata/models/mamba/config.h"

namespace strata::models {

struct BambaConfig {
  LlamaConfig llama;
  std::vector<bool> has_mamba;  // of each layer, in the place of attention
  MambaConfig mamba;
};

// Errors: as parse_llama_config().
BambaConfig parse_bamba_config(const Json& config);

// Of this family and Falcon-H1, whose reference is made of its classes.
LlamaConfig bamba_defaults();
// Of both: FormatError for lists of layers,
// which it works out by itself and cannot set.
void refuse_layer_lists(const ConfigReader& config, const char* other);

}  // namespace strata::models
