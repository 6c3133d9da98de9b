// What a router gives the loss that balances experts, and the gradient that it gets back. Owns:
// both for the logits of one layer. Never: the loss (nn/experts/expert_balance.h), who is chosen.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"

namespace strata::nn {

class ExpertBalance;

// What one layer adds in one pass.
struct RouterBalance {
  ExpertBalance* balance;  // null: none
  bool adds;               // to it
  int64_t num_padding;     // rows at the end that are not balanced
  int64_t num_tokens;      // of all ranks that share rows

  // `num_rows`: of the logits.
  static RouterBalance of(const ForwardContext& context, int64_t num_rows);

  // `probabilities` fp32 [T, experts], `experts` int64 [T, k].
  void add(const at::Tensor& probabilities, const at::Tensor& experts) const;
  bool has_gradient() const;
  // Adds probability times gradient to `terms` [T, experts] in place. Requires: has_gradient().
  void add_gradient_(const at::Tensor& terms, const at::Tensor& probabilities) const;

 private:
  at::Tensor real(const at::Tensor& rows) const;
};

// Logits [T, experts] as they are, for routers that choose by something else than the softmax that
// is balanced: with the gradient of the loss over it, of which a token's are the
// `experts_per_token` most probable. Adds to context.balance, unless the block runs again.
// Memory: keeps the probabilities, fp32 [T, experts]; nothing where no loss balances.
at::Tensor balanced(const at::Tensor& logits, int64_t experts_per_token,
                    const ForwardContext& context);

}  // namespace strata::nn
