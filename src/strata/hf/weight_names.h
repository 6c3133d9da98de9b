// Names of weights that are others in a model's folder than in transformers' model, which changes
// them as it reads a folder and back as it writes one, and those of what is no weight. Owns: those
// names. Never: what a weight is.
// Source: transformers conversion_mapping.py, and base_model_prefix of its classes.
#pragma once

#include <string>
#include <string_view>

#include "strata/base/json.h"

namespace strata::hf {

// The name in the model of what the folder with this config.json calls it: "lm_head.weight" for
// GPT-NeoX's "embed_out.weight", "model.norm_f.weight" for Nemotron-H's "backbone.norm_f.weight",
// "...experts.down_proj" for a Granite's "...output_linear.weight", and names of a body alone
// ("decoder.layers.0...") with the whole model's prefix; "...LayerNorm.weight" for
// "...LayerNorm.gamma".
std::string name_in_model(const Json& config, const std::string& in_folder);

// The name in the file of the model's weight `name`.
std::string name_in_folder(const Json& config, const std::string& name);

// Whether a file's tensor is a buffer of transformers' class: it never trains and is none of the
// parameters that are counted. In files are what corrects the choice of experts, Gemma 4's factor
// of a layer, and what BART and its relatives add to the logits.
bool is_buffer(std::string_view name);

// Whether it is one that stays in fp32 whatever the type of the weights
// (_keep_in_fp32_modules_strict): all of these but the last.
bool keeps_float32(std::string_view name);

}  // namespace strata::hf
