// Where the loss works on its logits, some rows at a time. Owns: how many, and their memory.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/linear.h"

namespace strata::nn {

struct LossBuffers {
  int64_t chunk;       // rows at once
  at::Tensor logits;   // [chunk, V], of the type of h
  at::Tensor widened;  // the same in fp32; the same tensor where nothing is to be widened
  at::Tensor rows;     // what each row of all chunks gives
};

// Buffers for the rows of h [R, hidden] and the layer's V outputs.
LossBuffers make_loss_buffers(const at::Tensor& h, const Linear& output, bool want_gradient);

// Rows of a chunk of `tokens` on the CPU.
int64_t loss_rows_at_once(int64_t tokens, int64_t vocabulary);

}  // namespace strata::nn
