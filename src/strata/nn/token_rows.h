// Rows of an embedding that train in place of the weight's own (PEFT's trainable tokens), and the
// part they have in a tied output layer. Owns: their mathematics. Never: autograd; nn/embedding.cpp
// and nn/chunked_cross_entropy.cpp call these functions inside their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

// Threads: as Parameter.
class TokenRows {
 public:
  // `name`: of the rows' parameter [ids.size(), columns]; fp32. Requires: no id twice.
  TokenRows(std::string name, std::vector<int64_t> ids, int64_t columns);

  Parameter& rows() { return rows_; }
  const std::vector<int64_t>& ids() const { return ids_; }

  // Puts the rows of those `ids` [T] that have one into `out` [T, H].
  void replace(const at::Tensor& ids, at::Tensor out);
  // The rows' gradient of dy [T, H], and zero in dy where a row was taken. A token equal to
  // `padding_id` gives none.
  void replace_backward(const at::Tensor& ids, std::optional<int64_t> padding_id, at::Tensor dy);

  // The output layer's logits [T, V] of h [T, H] for these tokens.
  void replace_logits(const at::Tensor& h, at::Tensor logits);
  // Adds their part of dh [T, H], writes or adds the rows' gradient, and makes dlogits zero there.
  void replace_logits_backward(const at::Tensor& h, at::Tensor dlogits, at::Tensor dh);

 private:
  // Tokens of `ids` that have a row, and which one.
  struct Match {
    at::Tensor tokens, rows;
  };
  Match match(const at::Tensor& ids) const;
  at::Tensor index(const at::Tensor& like) const;  // ids_ as a tensor

  std::vector<int64_t> ids_;
  Parameter rows_;
};

}  // namespace strata::nn
