// Families whose settings are all of Llama's layer: EXAONE 4 and ERNIE 4.5. Owns: declarations,
// apart from those of config.h, which much includes. Never: how they are read (exaone_config.cpp,
// ernie_config.cpp).
#pragma once

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"

namespace strata::models {

LlamaConfig parse_exaone4_config(const Json& config);
LlamaConfig parse_ernie4_5_config(const Json& config);

// Of EXAONE 4 and its mixtures: the windows, and which layers have positions.
void parse_exaone_windows(const ConfigReader& config, LlamaConfig& c);

}  // namespace strata::models
