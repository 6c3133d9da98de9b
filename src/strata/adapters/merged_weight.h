// What a layer's weight becomes when its adapter is folded into it. Owns: that arithmetic, in fp32.
// Never: files (checkpoint/convert/merge.h), nor where the result lies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "strata/nn/experts/expert_branch.h"
#include "strata/nn/linear.h"

namespace strata::adapters {

// A branch of one weight: W + scale * B A, for DoRA with rows of the length `magnitude`.
struct Branch {
  at::Tensor a;          // fp32 [r, in]
  at::Tensor b;          // fp32 [out, r]
  at::Tensor magnitude;  // fp32 [out], or undefined
  double scale = 0;
};

// Writes the sum, rounded once, to `result` [out, in] of any type, which may be `weight`. Memory:
// fp32 copies of some rows.
void add_branch(const at::Tensor& weight, const Branch& branch, at::Tensor& result);

// The matrices of all experts as [experts, in, out], where `rows_are_outputs` a view.
at::Tensor rows_of_inputs(const at::Tensor& matrices, bool rows_are_outputs);

// add_branch() for the matrices [experts, in, out] of all experts, any strides; `a` and `b` as
// nn::ExpertBranch has them, fp32.
void add_expert_branches(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                         double scale, at::Tensor& result);

// Which outputs of a parameter of all experts are those of one layer.
struct ExpertLayer {
  int64_t expert, num_experts;
  int64_t first_row = 0;  // of the expert's outputs
};
// The branch of a layer of so many outputs; `a` and `b` as nn::ExpertBranch has them, fp32.
Branch branch_of_layer(const at::Tensor& a, const at::Tensor& b, const ExpertLayer& layer,
                       int64_t outputs, double scale);

// VeRA's two matrices and vectors as such a branch. `shape`: of the weight.
Branch vera_branch(const nn::VeraProjection& projection, const at::Tensor& lambda_b,
                   const at::Tensor& lambda_d, at::IntArrayRef shape);

// The weight, and the bias where there is one, of a gathered layer with its adapter; fp32 copies.
// A transposed weight stays one; one in codes is decoded.
at::Tensor merged_weight(const nn::Linear& layer);
at::Tensor merged_bias(const nn::Linear& layer);
// The same of matrices of experts with a branch: each weight that holds some, by its name.
void visit_merged_weights(const nn::ExpertParameter& matrices,
                          const std::function<void(const std::string&, const at::Tensor&)>& visit);

}  // namespace strata::adapters
