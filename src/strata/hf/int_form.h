// What quantization_config says of weights in whole numbers of 2, 4 or 8 bits, of which a group of
// a row shares a scale: GPTQ's, AWQ's and those that compressed-tensors packs. Owns: its keys and
// their checks. Never: tensors (int_weight.h). Source: transformers GPTQConfig, AwqConfig;
// GPTQModel QuantizeConfig; compressed-tensors QuantizationArgs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::hf {

// Whether the folder has such weights, readable or not.
bool announces_ints(const Json& model_config);

enum class IntLayout { kGptq, kAwq, kCompressed };

struct IntScheme {
  int64_t bits;               // of a code
  int64_t group;              // columns that share a scale; 0: all of a row
  bool is_symmetric = false;  // the middle of the codes means zero, and no file says so
  bool has_order = false;     // columns of a group lie apart; of each weight its tensors decide
  bool operator==(const IntScheme&) const = default;
};
// "4 bits in groups of 128" or "8 bits with a scale of each row".
std::string describe(const IntScheme& scheme);

struct IntForm {
  IntLayout layout;
  // GPTQ's first version stores what is one less than the code that means zero.
  bool zeros_are_less = false;
  // Several where groups of layers differ: a weight has the first that its tensors fit.
  std::vector<IntScheme> schemes;
};

// ConfigError for a form that is not read; the message names the key.
// Requires: announces_ints().
IntForm read_int_form(const Json& model_config);

}  // namespace strata::hf
