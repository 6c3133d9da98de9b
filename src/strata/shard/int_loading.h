// Reads weights that a checkpoint holds in whole numbers, decoded on the way. Never: the arithmetic
// (hf/int_values.h), the pieces (decoding.h), which parameters there are.
#pragma once

#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

#include "strata/hf/int_weight.h"
#include "strata/hf/model_folder.h"

namespace strata::shard {

// Elements [begin, begin + out.numel()) of the flattened matrix into `out`, flat, of any floating
// type and on any device: those of a copy in plain weights of type weight.dtype(). Memory: beside
// `out`, decoding_buffer_numel() elements of fp32; of the file the weight's part, until
// forget_ints(): elements that follow each other lie all over the words of GPTQ and AWQ.
void read_ints(const hf::ModelFolder& folder, const hf::IntWeight& weight, int64_t begin,
               const at::Tensor& out);
void forget_ints(const hf::ModelFolder& folder, const hf::IntWeight& weight);

// Both, into `out`, host memory for elements of that type.
void read_ints(const hf::ModelFolder& folder, const hf::IntWeight& weight, int64_t begin,
               hf::DType type, std::span<std::byte> out);

}  // namespace strata::shard
