// The rows of the table by family; in the file of a family one function per op, which makes its
// case. The oracle is reference.h, in double and differentiated by autograd.
#pragma once

#include <vector>

#include "op_table.h"

namespace strata::ops {

std::vector<OpRow> norm_ops();
std::vector<OpRow> rope_ops();
std::vector<OpRow> norm_rope_ops();
std::vector<OpRow> gate_ops();    // activations of two halves
std::vector<OpRow> gather_ops();  // of rows of a table: embeddings, sums of experts' results
std::vector<OpRow> cross_entropy_ops();
std::vector<OpRow> dropout_ops();
std::vector<OpRow> optimizer_ops();
std::vector<OpRow> matmul_ops();
std::vector<OpRow> quant_ops();  // matrices of codes
std::vector<OpRow> attention_ops();

}  // namespace strata::ops
