// Factors of a tensor's columns, a range of them each, as an autograd function (Falcon-H1's of what
// a state space reads). Owns: the products. Never: where the ranges come from.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace strata::nn {

struct ColumnScale {
  int64_t columns;  // that follow those of the scale before
  double factor;
};

// x [T, all columns] with each range times its factor. Memory: keeps nothing.
at::Tensor scale_columns(const at::Tensor& x, const std::vector<ColumnScale>& scales);

}  // namespace strata::nn
