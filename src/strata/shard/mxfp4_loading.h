// Reads weights that a checkpoint holds in MXFP4, decoded on the way. Owns: the arithmetic and the
// order of elements, [E, K, N] of codes [E, N, K]. Never: which parameters there are.
// Source: transformers integrations/mxfp4.py, convert_moe_packed_tensors().
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/hf/model_folder.h"
#include "strata/hf/mxfp4.h"

namespace strata::shard {

// Elements [begin, begin + out.numel()) of the flattened weight into `out`, of any floating type
// and on any device; every value is one of bfloat16. Memory: of a file, the bytes of one expert;
// beside `out`, kReadAtOnce elements where its type or device is another.
void read_mxfp4(const hf::ModelFolder& folder, const hf::Mxfp4Weight& weight, int64_t begin,
                const at::Tensor& out);

}  // namespace strata::shard
