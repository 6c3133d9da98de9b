// The rows of the table of plain activations, apart from op_cases.h, and their formula in double.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "op_table.h"

namespace strata::ops {

std::vector<OpRow> activation_ops();

namespace reference {

// `numbers`: alpha_p, alpha_n, beta, eps.
inline at::Tensor xielu(const at::Tensor& x, const at::Tensor& numbers) {
  const at::Tensor bend = at::expm1(at::minimum(x, numbers[3])) - x;
  return at::where(x > 0, numbers[0] * x * x, numbers[1] * bend) + numbers[2] * x;
}

}  // namespace reference

}  // namespace strata::ops
