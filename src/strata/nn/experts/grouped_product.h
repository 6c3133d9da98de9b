// The products of all experts of a mixture, each expert's rows by its own matrix, as one operation
// of the device: to start hundreds of small products takes a host longer than they take a GPU.
// Owns: whether that can be, and the one operation. Never: the order of rows (expert_rows.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/experts/expert_rows.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// [S, out] = each expert's rows of x [S, in] by the transpose of its weight [out, in]; `back`:
// [S, in] = rows of x [S, out] by the weights as they are.
// Nothing where products one by one are the better way: on CPUs and GPUs but Hopper and data
// centres' Blackwell, whose own operation is such a loop; in other types than bf16; for codes, and
// where the weights do not rest at one distance from each other; or once libtorch has refused.
std::optional<at::Tensor> grouped_product(const std::vector<const Parameter*>& weights,
                                          const at::Tensor& x, const ExpertRows& rows, bool back);

// What libtorch said when it refused; empty: it did not.
std::string grouped_product_refusal();

// Tests choose; a run takes what is faster.
enum class GroupedProducts { kWhereFaster, kAlways };
void choose_grouped_products(GroupedProducts products);

}  // namespace strata::nn
