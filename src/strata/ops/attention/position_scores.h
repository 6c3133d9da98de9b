// On GPUs: scores of queries, or of keys, with vectors of relative positions, for attention on
// padded documents (He et al. 2021, disentangled attention): products with the vector of each
// distance, read along diagonals. Owns: those products, where a score stands in them, their
// backward. Never: which vector a distance has, softmax.
//
// D documents of L queries and S keys, H heads, C channels, W = L + S - 1 distances.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::ops::dense {

// [N, m, k] x [N, k, n] in fp32.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

struct PositionShape {
  int64_t documents, heads, queries, keys;

  int64_t distances() const { return queries + keys - 1; }
};

// Which of both meets the vectors.
enum class PositionSide { kQueries, kKeys };

// Memory: the products of all distances, W / S times the scores, in fp32.
class PositionScores {
 public:
  // `x` [D * H, L or S, C]; `table` [W, H, C]: of key - query from 1 - L on, of the first document
  // places counted from its padded one.
  PositionScores(PositionSide side, const PositionShape& shape, const at::Tensor& x,
                 const at::Tensor& table);

  // scores [D, H, L, S] += x's products with the vector of each distance.
  void add_to(const at::Tensor& scores) const;
  // For the gradients of scores [D, H, L, S]: adds to `dtable` [W, H, C], times `scale`; returns
  // x's, fp32.
  at::Tensor backward(const at::Tensor& dscores, const at::Tensor& dtable, double scale) const;

 private:
  int64_t rows() const { return side_ == PositionSide::kQueries ? shape_.queries : shape_.keys; }
  // [D, H, L, S] of products [H, D * rows, W].
  at::Tensor scores_in(const at::Tensor& products) const;

  PositionSide side_;
  PositionShape shape_;
  at::Tensor x_;      // [H, D * rows, C]
  at::Tensor table_;  // [H, W, C], by the distance from the row's own place on
};

}  // namespace strata::ops::dense
