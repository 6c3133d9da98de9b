// The low-rank branch of the matrices of all experts of a layer, which the reference holds as one
// parameter (PEFT's target_parameters): a branch of its own for every expert, in two tensors.
// Owns: its weights and products. Never: autograd; the experts' own functions call these inside.
// Source: PEFT tuners/lora/layer.py (ParamWrapper).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/experts/expert_rows.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// y_e += x_e A_e^T B_e^T * scaling for the rows of each expert e, in the type of x.
struct ExpertBranch {
  Parameter a;  // [experts * r, in_features], A_e [r, in] are the rows e * r .. (e + 1) * r
  Parameter b;  // [out_features, r * experts], column j of B_e [out, r] is column j * experts + e
  int64_t num_experts;
  double scaling = 1.0;

  int64_t rank() const { return a.shape()[0] / num_experts; }
  bool trains() const { return a.requires_grad() || b.requires_grad(); }
};

// Such a parameter, and its branch where it has one.
struct ExpertParameter {
  std::string name;  // of the reference's parameter: "model.layers.0.mlp.experts.down_proj"
  int64_t num_experts;
  int64_t in_features;
  int64_t out_features;
  std::vector<Parameter*> weights;  // what it is made of here
  bool rows_are_outputs = false;    // [experts, out, in]; else [experts, in, out]
  std::unique_ptr<ExpertBranch> branch = {};

  void append_branch(std::vector<Parameter*>& list) const;
};

// Tensors of S rows that hold the outputs beside each other, or one that holds them all.
using OutputParts = std::vector<at::Tensor>;

// Adds the branch's output for x [S, in_features] to `y` [S, columns of out_features] in place.
// Memory: 2 * S * r elements, and B again.
void add_expert_branch_(const OutputParts& y, const at::Tensor& x, const ExpertBranch& branch,
                        const ExpertRows& rows);

// Writes the gradients of A and B where they train, zero for experts without rows, and, where `dx`
// is defined, adds the branch's part of the input's gradient to it in place. Rows of `x` may be
// scaled against those of the forward pass: the gradients are then those of a scaled dy, and dx is
// that of dy.
void expert_branch_backward(const OutputParts& dy, const at::Tensor& x, ExpertBranch& branch,
                            const ExpertRows& rows, const at::Tensor& dx);

}  // namespace strata::nn
