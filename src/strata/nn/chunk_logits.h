// The output layer's products for a chunk of the loss (chunked_cross_entropy.h), there and back,
// with whatever hangs on that layer. Never: the loss, which rows make a chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/dora.h"
#include "strata/nn/linear.h"
#include "strata/nn/weight_product.h"

namespace strata::nn {

struct OutputLayer {
  const Linear* linear;
  Purpose purpose;
  at::Tensor dora_norms = {};  // of a DoRA branch: they do not depend on the chunk
};

// One chunk's logits in the compute type, and what its backward pass needs of the adapter.
struct ChunkLogits {
  at::Tensor logits;
  at::Tensor hidden;    // A(x) of a branch, LoRA's or VeRA's
  DoraSaved dora;       // of a DoRA branch, instead
  at::Tensor unscaled;  // of factors on the logits: the logits before
};

// The logits of rows h [rows, hidden], in `buffer` [rows, V]. `draw`: that of these rows.
ChunkLogits chunk_logits(const OutputLayer& layer, const at::Tensor& h, const DropoutDraw& draw,
                         at::Tensor buffer, bool want_gradient);

// Writes the gradients of all that trains in the layer, and dh [rows, hidden]. `h`: what the layer
// read, `result` with the logits replaced by their gradient.
void chunk_backward(const OutputLayer& layer, const at::Tensor& h, const ChunkLogits& result,
                    const DropoutDraw& draw, at::Tensor dh);

}  // namespace strata::nn
