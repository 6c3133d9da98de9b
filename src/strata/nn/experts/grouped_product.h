// The products of all experts of a mixture, each expert's rows by its own matrix, as one operation
// of the device: to start hundreds of small products takes a host longer than they take a GPU.
// Owns: whether that can be, the one operation, and memory for matrices that are decoded for it.
// Never: the order of rows (expert_rows.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/experts/expert_rows.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// [S, columns] = each expert's rows of x by its matrix M [rows, columns], with `transposed`
// [S, rows] = by M^T. `weights`: the matrix of every expert, or the one parameter of all of them,
// [experts, rows, columns].
// Memory: the result; of codes as many decoded matrices as fit into half a GiB, one at least, and
// where they are not all, the result of these.
// Nothing where products one by one are the better way: on CPUs and GPUs but Hopper and data
// centres' Blackwell, whose own operation is such a loop; in other types than bf16; where the
// weights do not rest at one distance from each other; of codes where most experts have no rows,
// as in answers; or once libtorch has refused.
std::optional<at::Tensor> grouped_product(const std::vector<const Parameter*>& weights,
                                          const at::Tensor& x, const ExpertRows& rows,
                                          bool transposed);

// What libtorch said when it refused; empty: it did not.
std::string grouped_product_refusal();

// Tests choose; a run takes what is faster.
enum class GroupedProducts {
  kWhereFaster,
  kAlways,
  kTwoDecoded,  // always, with memory for two decoded matrices
};
void choose_grouped_products(GroupedProducts products);

}  // namespace strata::nn
