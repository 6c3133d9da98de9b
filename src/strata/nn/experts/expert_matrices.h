// Products with the matrices of a parameter of all experts, whatever their form at rest. Owns:
// memory for one that was decoded. Never: which rows are an expert's.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"
#include "strata/nn/weight_product.h"

namespace strata::nn {

// Matrices of a parameter [experts, rows, columns]. Memory: if stored as codes, one matrix that is
// decoded at a time. Threads: one in that case.
class ExpertMatrices {
 public:
  // `type`: that of the activations. `purpose`: answers multiply few rows by the codes (see
  // forward_product_into()). Requires: `weight` is gathered, and outlives this.
  ExpertMatrices(const Parameter& weight, at::ScalarType type,
                 Purpose purpose = Purpose::kEvaluation);
  // y = x M + beta * y with the matrix M [rows, columns] of an expert, x M^T for `transposed`; beta
  // 0 or 1.
  void multiply_into(const at::Tensor& y, const at::Tensor& x, size_t expert, bool transposed,
                     float beta) const;

 private:
  bool multiply_answer_into(const at::Tensor& y, const at::Tensor& x, size_t expert,
                            bool transposed, float beta) const;

  const Parameter& weight_;
  Purpose purpose_;
  at::ScalarType type_;
  mutable at::Tensor decoded_;  // of MXFP4; from the first product on that needs it
};

}  // namespace strata::nn
