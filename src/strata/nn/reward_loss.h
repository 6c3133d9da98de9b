// A head of one number for a whole document, its reward, and the loss of pairs of documents of
// which one is preferred (Bradley and Terry 1952; centred as in Eisenstein et al. 2023, equation
// 2). Owns: which rows the head reads, that loss. Never: the final norm, the head's layer.
// Source: transformers GenericForSequenceClassification, TRL RewardTrainer.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"

namespace strata::nn {

// A micro-batch whose documents are pairs, the preferred one first: what the head must know, and
// what it tells.
struct Rewards {
  std::vector<int64_t> rows;  // [D] of each document, the token whose row the head reads
  double center_coefficient = 0;
  std::vector<double> values;  // [D] filled by the head
};

// x [T, hidden] -> [D, hidden]: the rows of context.head.rewards; where it is null (a memory plan)
// the last of each document.
at::Tensor rewarded_rows(const at::Tensor& x, const ForwardContext& context);

// rewards [D, 1] -> fp32 scalar: the sum over pairs of -log sigmoid(chosen - rejected) +
// center_coefficient * (chosen + rejected)^2, times context.head.loss_scale. Adds to
// context.head.sums, and fills context.head.rewards.
at::Tensor reward_loss(const at::Tensor& rewards, const ForwardContext& context);

}  // namespace strata::nn
