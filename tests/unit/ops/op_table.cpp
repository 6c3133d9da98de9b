#include "op_table.h"

#include <utility>

#include "activation_cases.h"
#include "op_cases.h"
#include "reference.h"

namespace strata::ops {
namespace {

std::vector<OpRow> make_table() {
  std::vector<OpRow> table;
  for (const auto family :
       {norm_ops, rope_ops, norm_rope_ops, gate_ops, activation_ops, gather_ops, cross_entropy_ops,
        dropout_ops, optimizer_ops, matmul_ops, quant_ops, attention_ops}) {
    for (OpRow& row : family()) table.push_back(std::move(row));
  }
  return table;
}

}  // namespace

std::span<const OpRow> op_table() {
  static const std::vector<OpRow> table = make_table();
  return table;
}

double error_of(const Comparison& comparison) {
  return reference::relative_error(comparison.found, comparison.expected);
}

}  // namespace strata::ops
