// Weights of a base that are stored in the codes of its files (MXFP4, fp8, whole numbers) while it
// answers. Owns: which, of the base and of models over it. Never: codes of bitsandbytes
// (models/quantization.h), loading.
#pragma once

#include <map>
#include <string>

#include "strata/hf/model_folder.h"
#include "strata/models/model.h"

namespace strata::generate {

// What files hold that is to be decoded while it is read.
struct DecodedForms {
  bool mxfp4 = false, fp8 = false, ints = false;
};

// By the parameter's name.
using KeptCodes = std::map<std::string, nn::Quantization>;

// Marks the frozen ones of a base's weights; values were `type` on the way. Call before memory is
// given out. Errors: those of reading the files.
void keep_codes_of_files(models::Model& model, const hf::ModelFolder& folder,
                         const DecodedForms& decoded, at::ScalarType type);
// Those of a model that are so marked.
KeptCodes kept_codes(models::Model& model);
// Marks the same weights of another model of that base where they are frozen.
void keep_codes(models::Model& model, const KeptCodes& kept, at::ScalarType type);

}  // namespace strata::generate
