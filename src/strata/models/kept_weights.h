// Linear layers whose weights may rest in the codes of their files. Owns: the choice, and what
// config.json excepts. Never: which codes those are (fp8_weights.h, int_weights.h).
#pragma once

#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/models/model.h"
#include "strata/nn/linear.h"

namespace strata::models {

// Those whose weight is frozen. Vocabularies, weights that two modules use or that files hold as
// [in, out] are decoded.
std::vector<nn::Linear*> keepable_linears(Model& model);

// What config.json says of files that are not there: linear layers but those that its
// quantization_config excepts.
std::vector<nn::Linear*> announced_linears(Model& model, const Json& quantization_config);

}  // namespace strata::models
