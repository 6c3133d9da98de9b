// Weights that bitsandbytes serialised into a checkpoint: which tensors belong to one and what its
// quant_state says. Never: arithmetic on codes. Source: bitsandbytes 0.50
// QuantState.as_dict(packed) and Linear8bitLt's state dict.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/hf/model_folder.h"

namespace strata::hf {

// One quantised weight of a folder; the pointers are into the folder's tables.
struct QuantizedWeight {
  std::string kind;                // "nf4", "fp4", "int8"
  std::vector<int64_t> shape;      // of the matrix
  int64_t blocksize = 64;          // 4 bits
  std::string dtype = "float16";   // of the matrix before it was quantised
  double nested_offset = 0;        // double quantisation: what is added to the scales
  int64_t nested_blocksize = 256;  // likewise
  const TensorInfo* codes = nullptr;
  const TensorInfo* scales = nullptr;      // absmax, or SCB
  const TensorInfo* nested = nullptr;      // nested_absmax; null without double quantisation
  const TensorInfo* map = nullptr;         // quant_map, 16 fp32; null for int8
  const TensorInfo* nested_map = nullptr;  // nested_quant_map, 256 fp32
};

// Whether config.json says that the weights are codes, other than those of mxfp4.h, fp8.h and
// int_form.h; with null for quantization_config they are plain, what is no object either is a
// ConfigError.
bool announces_codes(const Json& model_config);

// The quantised weight NAME ("...q_proj.weight"), or nothing when the tensor of that name is not
// quantised or absent. FormatError for state that is incomplete or does not fit together.
std::optional<QuantizedWeight> find_quantized_weight(const ModelFolder& folder,
                                                     const std::string& name);

// The names of all tensors beside NAME that its quantised form has, in the order of the file.
std::vector<std::string> quantized_companions(const ModelFolder& folder, const std::string& name);

// The JSON text in "NAME.quant_state.bitsandbytes__KIND", as Python writes it.
std::string quant_state_json(const QuantizedWeight& weight);

}  // namespace strata::hf
