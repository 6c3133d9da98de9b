// Whether and how a run's frozen base is quantised: by its settings, or by the codes that the
// checkpoint holds. Never: which layers (models/quantization.h), weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/config/run_config.h"
#include "strata/models/model.h"
#include "strata/models/quantization.h"

namespace strata::train {

// A checkpoint that holds codes decides over the settings, as in the reference; codes of another
// width than the settings ask for are a ConfigError. `model_config`: config.json of the base.
std::optional<models::QuantizationOptions> quantization_of(const config::QuantizationConfig& config,
                                                           const Json& model_config);

// Whether a weight of the model rests in codes of bitsandbytes, beside which the reference widens
// the others.
bool has_bitsandbytes_codes(models::Model& model);

// Settings of quantising that the checkpoint makes idle.
std::vector<std::string> quantization_warnings(const config::QuantizationConfig& config,
                                               const Json& model_config);

}  // namespace strata::train
