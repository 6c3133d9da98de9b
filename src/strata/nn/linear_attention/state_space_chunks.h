// Mamba-2's rule over chunks in lanes, for some heads that share B and C: inside a chunk products
// of matrices, from chunk to chunk the state. Owns: the formulas, forward and backward, outside of
// autograd. Never: which heads are computed together (state_space.h).
//
// n = lanes * chunks, C tokens a chunk, h heads of P channels, states of N. All in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/linear_attention/document_lanes.h"

namespace strata::nn {

// At the places of the lanes, zero in empty ones.
struct SpaceInputs {
  at::Tensor x;      // [n, C, h, P]
  at::Tensor b, c;   // [n, C, N]
  at::Tensor steps;  // [n, C, h]
  at::Tensor rate;   // [h], below 0
};

// Gradients by token, each [T, ...]; rate [h].
struct SpaceGradients {
  at::Tensor x, b, c, steps, rate;
};

// x [T, h, P], b and c [T, N], steps [T, h].
SpaceInputs space_inputs(const at::Tensor& x, const at::Tensor& b, const at::Tensor& c,
                         const at::Tensor& steps, const at::Tensor& rate,
                         const DocumentLanes& lanes);

// [n, C, ...] -> [T, ...], fresh.
at::Tensor from_lanes(const at::Tensor& x, const DocumentLanes& lanes);

// y [n, C, h, P]. `state` [h, N, P]: that before the first chunk of a single lane, afterwards that
// after its last; null: zeros, and nobody asks.
at::Tensor run_chunks(const SpaceInputs& in, const DocumentLanes& lanes,
                      at::Tensor* state = nullptr);

// `dy` [T, h, P].
SpaceGradients chunks_backward(const SpaceInputs& in, const at::Tensor& dy,
                               const DocumentLanes& lanes);

}  // namespace strata::nn
