// What quantization_config says of weights in 8-bit floating point. Owns: its keys and their
// checks. Never: tensors (fp8.h). Source: transformers FineGrainedFP8Config, FbgemmFp8Config;
// compressed-tensors QuantizationArgs.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "strata/base/json.h"

namespace strata::hf {

// Whether the folder has such weights, readable or not.
bool announces_fp8(const Json& model_config);

struct Fp8Form {
  // Rows and columns that share a scale; 0: all of a matrix. Several where groups of layers differ.
  std::vector<std::array<int64_t, 2>> tiles;
  // Whether a number of scales that fits no tile means as many equal parts, as transformers
  // decodes.
  bool divides = false;
  // What the name of the scales adds to that of the weight.
  std::string_view scale_end;
};

// ConfigError for a form that is not read; the message names the key.
// Requires: announces_fp8().
Fp8Form read_fp8_form(const Json& model_config);

}  // namespace strata::hf
