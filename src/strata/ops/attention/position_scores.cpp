#include "strata/ops/attention/position_scores.h"

#include <ATen/ATen.h>

namespace strata::ops::dense {

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda() && a.scalar_type() != at::kFloat) return at::bmm(a, b, at::kFloat);
  return at::bmm(a.to(at::kFloat), b.to(at::kFloat));
}

PositionScores::PositionScores(PositionSide side, const PositionShape& shape, const at::Tensor& x,
                               const at::Tensor& table)
    : side_(side),
      shape_(shape),
      x_(x.view({shape.documents, shape.heads, rows(), -1})
             .transpose(0, 1)
             .reshape({shape.heads, shape.documents * rows(), -1})),
      // A key counts from itself to the query.
      table_((side == PositionSide::kQueries ? table : table.flip(0)).transpose(0, 1)) {}

// Row r of a document has its own place at distance rows() - 1 - r; one row further on everything
// stands one place before.
at::Tensor PositionScores::scores_in(const at::Tensor& products) const {
  const int64_t wide = shape_.distances(), of_document = rows() * wide;
  const int64_t of_head = shape_.documents * of_document;
  const bool is_of_queries = side_ == PositionSide::kQueries;
  return products.as_strided(
      {shape_.documents, shape_.heads, shape_.queries, shape_.keys},
      {of_document, of_head, is_of_queries ? wide - 1 : 1, is_of_queries ? 1 : wide - 1},
      rows() - 1);
}

void PositionScores::add_to(const at::Tensor& scores) const {
  const at::Tensor products = product(x_, table_.transpose(1, 2));
  at::Tensor(scores).add_(scores_in(products));
}

at::Tensor PositionScores::backward(const at::Tensor& dscores, const at::Tensor& dtable,
                                    double scale) const {
  // In the type that they are multiplied in: on CPUs fp32.
  const at::ScalarType type = dscores.is_cuda() ? dscores.scalar_type() : at::kFloat;
  const at::Tensor products = at::zeros(
      {shape_.heads, shape_.documents * rows(), shape_.distances()}, dscores.options().dtype(type));
  scores_in(products).copy_(dscores);
  const at::Tensor of_table = product(products.transpose(1, 2), x_).transpose(0, 1);
  at::Tensor(dtable).add_(side_ == PositionSide::kQueries ? of_table : of_table.flip(0), scale);
  return product(products, table_)
      .view({shape_.heads, shape_.documents, rows(), -1})
      .transpose(0, 1)
      .reshape({shape_.documents * shape_.heads, rows(), -1});
}

}  // namespace strata::ops::dense
