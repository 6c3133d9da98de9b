// Reads weights that a checkpoint holds in 8-bit floating point, decoded on the way. Never: the
// arithmetic (hf/fp8.h), the pieces (decoding.h), which parameters there are.
#pragma once

#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

#include "strata/hf/dtype.h"
#include "strata/hf/fp8.h"
#include "strata/hf/model_folder.h"

namespace strata::shard {

// Elements [begin, begin + out.numel()) of the flattened weight into `out`, flat, of any floating
// type and on any device, rounded once. Memory: of a file a piece at a time; beside `out`,
// decoding_buffer_numel() elements of fp32.
void read_fp8(const hf::ModelFolder& folder, const hf::Fp8Weight& weight, int64_t begin,
              const at::Tensor& out);

// The same into `out`, host memory for elements of that type.
void read_fp8(const hf::ModelFolder& folder, const hf::Fp8Weight& weight, int64_t begin,
              hf::DType type, std::span<std::byte> out);

// The type in which such weights are written: that of config.json; bfloat16 where it has none.
hf::DType decoded_type(const hf::ModelFolder& folder);

}  // namespace strata::shard
