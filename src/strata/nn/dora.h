// DoRA (Liu et al. 2024): the rows of W + scaling * B A, brought to trained lengths. Owns: the
// mathematics of such a layer without its bias. Never: autograd; nn/linear.cpp calls these
// functions inside its own.
//
// With n the row lengths of W + scaling * B A, held constant in backward, and g = magnitude / n:
// y = W x + (g - 1) * W d + g * scaling * B(A(d)), d = dropout(x). Source: PEFT
// tuners/lora/dora.py.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/low_rank.h"
#include "strata/nn/parameter.h"
#include "strata/nn/weight_product.h"

namespace strata::nn {

// What the backward pass needs beside x.
struct DoraSaved {
  at::Tensor hidden;  // [T, r], A's output
  at::Tensor rows;    // [T, out_features]: W d + scaling * B(A(d))
  at::Tensor norms;   // fp32 [out_features], n
};

// Row lengths of W + scaling * B A, fp32 [out_features]. Memory: some rows at a time, but a
// quantised W is decoded whole. Requires: both are gathered, or given.
at::Tensor dora_row_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                          double scaling);

// The same of a layer's gathered weight.
at::Tensor dora_row_norms(const Parameter& weight, const LowRankBranch& branch);

struct DoraCall {
  DropoutDraw draw;
  Purpose purpose = Purpose::kEvaluation;
  at::Tensor norms;  // dora_row_norms(), which do not depend on x
};

// Adds the layer's output for x [T, in_features] to y [T, out_features] in place.
DoraSaved dora_forward_(at::Tensor y, const at::Tensor& x, const Parameter& weight,
                        const LowRankBranch& branch, const DoraCall& call);

// Writes the gradients of A, B and the magnitude and, where `dx` is defined, sets it to
// beta * dx + the input's gradient (beta 0 or 1).
void dora_backward(const at::Tensor& dy, const at::Tensor& x, const DoraSaved& saved,
                   const Parameter& weight, LowRankBranch& branch, const DropoutDraw& draw,
                   at::Tensor dx, float beta);

}  // namespace strata::nn
