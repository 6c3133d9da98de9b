// Reads weights that a checkpoint holds in MXFP4, decoded on the way. Owns: the order of elements,
// [E, K, N] of codes [E, N, K]. Never: the arithmetic (ops/quant), which parameters there are,
// those that rest as codes (quantized_loading.h). Source: transformers integrations/mxfp4.py,
// convert_moe_packed_tensors().
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/hf/model_folder.h"
#include "strata/hf/mxfp4.h"

namespace strata::shard {

// Elements [begin, begin + out.numel()) of the flattened weight into `out`, of any floating type
// and on any device; every value is one of bfloat16. Memory: of a file, the bytes of one expert;
// beside `out`, mxfp4_buffer_numel() elements of bfloat16.
void read_mxfp4(const hf::ModelFolder& folder, const hf::Mxfp4Weight& weight, int64_t begin,
                const at::Tensor& out);

// 0 where `out`, flat, is decoded into at once: in host memory, fp32 or bfloat16. `columns`: N.
int64_t mxfp4_buffer_numel(const at::Tensor& out, int64_t columns);

}  // namespace strata::shard
