// Codes that a checkpoint holds, as a home of theirs has them (ops/quant/format.h). Owns: which of
// a weight's tensors go where among them. Never: quantises (quantized_loading.h), decodes.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "strata/hf/model_folder.h"
#include "strata/nn/parameter.h"

namespace strata::shard {

// Whether the folder's weight `name` is codes of the parameter's format, not plain values.
// Requires: a quantised parameter.
bool are_stored(const hf::ModelFolder& folder, const std::string& name,
                const nn::Parameter& parameter);

// Bytes [begin, begin + out.numel()) of the weight's codes and scales into `out`, flat, on any
// device; what lies between the parts is zero. FormatError for a file that holds others than the
// parameter's format says. Requires: are_stored(). Memory: of the file a tensor's pages at a time;
// beside `out`, as much again where it is on a device.
void read_stored_codes(const hf::ModelFolder& folder, const std::string& name,
                       const nn::Parameter& parameter, int64_t begin, const at::Tensor& out);

}  // namespace strata::shard
