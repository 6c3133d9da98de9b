// The low-rank branch of experts whose matrices are [experts, in, out], where PEFT takes them for
// [experts, out, in] (Llama 4): A has the outputs, B the inputs. Owns: its products. Never: the
// branch of matrices that PEFT knows (expert_branch.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/experts/expert_branch.h"

namespace strata::nn {

// Adds a branch with A [experts * r, out] and B [in, r * experts], whose columns are as in
// ExpertBranch: y_e += x_e B_e A_e * scaling for the rows of each expert e, in the type of x.
void add_swapped_branch_(const at::Tensor& y, const at::Tensor& x, const ExpertBranch& branch,
                         const ExpertRows& rows);

// As expert_branch_backward().
void swapped_branch_backward(const at::Tensor& dy, const at::Tensor& x, ExpertBranch& branch,
                             const ExpertRows& rows, const at::Tensor& dx);

}  // namespace strata::nn
