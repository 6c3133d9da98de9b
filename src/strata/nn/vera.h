// VeRA (Kopiczko et al. 2024): a branch whose two matrices are random, frozen and shared by all
// layers, and whose two scaling vectors train. Owns: the mathematics of such a branch. Never:
// autograd (nn/linear.cpp and nn/chunked_cross_entropy.cpp call these functions inside their own
// functions), nor the draws (adapters/vera.h).
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "strata/nn/low_rank.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// Large enough for every layer: one reads the first columns of A and the first rows of B. The same
// on every rank, never sharded, as PEFT's buffers are.
struct VeraProjection {
  at::Tensor a;  // fp32 [r, largest in_features]
  at::Tensor b;  // fp32 [largest out_features, r]
};

// y += lambda_b * B(lambda_d * A(dropout(x))), in the type of lambda_d. Source: PEFT
// tuners/vera/layer.py.
struct Vera {
  std::shared_ptr<VeraProjection> projection;
  Parameter b;  // lambda_b [out_features]
  Parameter d;  // lambda_d [r]
  double dropout = 0.0;
  uint64_t layer_id = 0;

  bool trains() const { return b.requires_grad() || d.requires_grad(); }
};

// A's output [T, r] for x [T, in_features], which backward needs; x is not needed.
at::Tensor vera_hidden(const at::Tensor& x, const Vera& vera, const DropoutDraw& draw);
// Adds the branch's output for x [T, in_features] to y [T, out_features] in place. Returns
// vera_hidden().
at::Tensor vera_forward_(at::Tensor y, const at::Tensor& x, const Vera& vera,
                         const DropoutDraw& draw);

// Writes the gradients of both vectors and, where `dx` is defined, adds the branch's part of the
// input's gradient to it in place.
void vera_backward(const at::Tensor& dy, const at::Tensor& hidden, Vera& vera,
                   const DropoutDraw& draw, at::Tensor dx);

}  // namespace strata::nn
