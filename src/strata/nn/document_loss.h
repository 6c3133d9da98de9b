// A head that reads one row of each document and gives numbers, and what is learnt from them: which
// of two documents is preferred (Bradley and Terry 1952; centred as in Eisenstein et al. 2023,
// equation 2), the class of a document, several labels, or numbers. Owns: which rows the head
// reads, those losses. Never: the final norm, the head's layer.
// Source: transformers GenericForSequenceClassification and its loss functions, TRL RewardTrainer.
//
// D documents, L numbers of each.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"

namespace strata::nn {

enum class DocumentLoss {
  kPairs,    // documents are pairs, the preferred one first, of one number each
  kClasses,  // one class of L: cross entropy
  kLabels,   // any of L labels: binary cross entropy of each
  kNumbers,  // L numbers: squared error of each
};

// What the head must know of a micro-batch's documents, and what it tells.
struct DocumentTask {
  DocumentLoss loss = DocumentLoss::kPairs;
  std::vector<int64_t> rows = {};   // [D] of each document, the token whose row the head reads
  double center_coefficient = 0;    // of kPairs
  std::vector<float> targets = {};  // of kClasses [D] numbers of classes, else [D * L]
  // The loss is of so many documents, the first; fewer than none: of all.
  int64_t num_counted = -1;
  std::vector<double> values = {};  // [D * L] filled by the head
};

// x [T, hidden] -> [D, hidden]: the rows of context.head.documents; where it is null (a memory
// plan) the last of each document.
at::Tensor document_rows(const at::Tensor& x, const ForwardContext& context);

// The mean of each document's rows, summed in fp32: x [T, hidden] -> [D, hidden] of its type.
at::Tensor document_means(const at::Tensor& x, const ForwardContext& context);

// values [D, L] -> fp32 scalar, times context.head.loss_scale. Of kPairs the sum over pairs of
// -log sigmoid(chosen - rejected) + center_coefficient * (chosen + rejected)^2; of others the sum
// over documents, of each the mean over its labels or numbers; context.head.label_smoothing is of
// kClasses. Adds to context.head.sums, and fills
// context.head.documents.
at::Tensor document_loss(const at::Tensor& values, const ForwardContext& context);

}  // namespace strata::nn
