// Families whose settings are all of Llama's layer: EXAONE 4, ERNIE 4.5, InternLM3, IQuest-Coder,
// CWM, Helium, HyperCLOVA X, VaultGemma and Granite with windows. Owns: declarations, apart from
// those of config.h, which much includes. Never: how they are read (exaone_config.cpp, ...).
#pragma once

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"

namespace strata::models {

LlamaConfig parse_exaone4_config(const Json& config);
LlamaConfig parse_ernie4_5_config(const Json& config);
LlamaConfig parse_internlm3_config(const Json& config);
LlamaConfig parse_iquestcoder_config(const Json& config);
LlamaConfig parse_cwm_config(const Json& config);
LlamaConfig parse_helium_config(const Json& config);
LlamaConfig parse_hyperclovax_config(const Json& config);
LlamaConfig parse_vaultgemma_config(const Json& config);
LlamaConfig parse_granite_swa_config(const Json& config);

// Of families with llama3 positions unless the file says otherwise: the file with these written
// out. A rope_theta alone says nothing there.
Json with_llama3_positions(const Json& json, double theta, double factor);

// Of EXAONE 4 and its mixtures: the windows, and which layers have positions.
void parse_exaone_windows(const ConfigReader& config, LlamaConfig& c);

}  // namespace strata::models
