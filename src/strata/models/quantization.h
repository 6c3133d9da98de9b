// Which weights of a model rest quantised, and how, by the rules of transformers.
// Owns: the choice of layers. Never: arithmetic, loading.
// Source: transformers 5.23 integrations/bitsandbytes.py, quantizers/, BitsAndBytesConfig.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/models/model.h"
#include "strata/models/skipped_modules.h"

namespace strata::models {

struct QuantizationOptions {
  nn::Quantization quantization;
  SkipModules skip_modules;
  // Experts that are no layers in the reference, too. Files of bitsandbytes hold them plain.
  bool takes_experts = true;
};

// What "quantization_config" of config.json says; nothing when there is none. ConfigError for a
// method other than bitsandbytes and for values that cannot be.
std::optional<QuantizationOptions> stored_quantization(const Json& model_config);

// The type of products that bnb_4bit_compute_dtype names; nothing for another name.
std::optional<at::ScalarType> compute_type_of(const std::string& name);

// Whether a folder of this config.json holds the weight in MXFP4: those of experts, matrices that
// are one parameter.
bool is_in_mxfp4(const Json& model_config, const nn::Parameter& parameter);

// Marks such weights where they are frozen, so that they rest as they are in the file and are
// decoded for each product, to values that were `type` on the way. Call when quantize_base() would
// be called.
void keep_mxfp4(Model& model, const Json& model_config, at::ScalarType type);

// The layers that `skip_modules` leaves plain in the model of a folder, under names that
// llm_int8_skip_modules takes: the last of the path, or the path where not all of that name are
// meant. Nothing where the choice is that of no skip_modules. Errors: those of create_model().
std::optional<std::vector<std::string>> plain_layers(const hf::ModelFolder& folder,
                                                     const SkipModules& skip_modules);

// Marks the frozen weights of linear layers and experts. Tied weights, weights that train, that are
// codes already, and skipped modules stay as they are. Call after attaching adapters, before
// check_weights() and giving out memory. Returns the number of weights; none is a ConfigError.
int quantize_base(Model& model, const QuantizationOptions& options);

// ConfigError for an entry of llm_int8_skip_modules that means none of the model's modules, or is
// no expression.
void require_skip_modules(Model& model, const SkipModules& skip_modules);

}  // namespace strata::models
