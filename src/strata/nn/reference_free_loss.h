// Losses over pairs of answers that need no reference beside the model: odds ratio preference
// optimisation (ORPO, Hong et al. 2024) and contrastive preference optimisation (CPO, Xu et
// al. 2024), also with the hinge of SLiC, IPO or SimPO (Meng et al. 2024) in its place and with the
// rewards of AlphaPO (Gupta et al. 2025). Owns: what a pair costs, and how that changes with the
// log-probabilities. Never: computes those (chunked_cross_entropy.h).
// Source: TRL ORPOTrainer.odds_ratio_loss, CPOTrainer.cpo_loss.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/nn/preference.h"

namespace strata::nn {

// The names and the meanings are CPOConfig's of TRL but for the first two; the ranges are checked
// where settings are.
struct ReferenceFreeOptions {
  std::string loss = "sigmoid";  // sigmoid, hinge, ipo, simpo; odds_ratio is ORPO's
  // What a preferred answer counts as in supervised fine-tuning, whose mean is over the tokens of
  // the whole step (cpo_alpha).
  double nll_weight = 1;
  double beta = 0.1;
  double label_smoothing = 0;  // of sigmoid and simpo
  double simpo_gamma = 0.5;    // by how much simpo wants the preferred answer to win
  // An answer of probability p is worth (1 - p^-alpha) / alpha; with 0 it is log p.
  double alpha = 0;
};

// A micro-batch whose documents are pairs, the preferred answer first: what the head must know, and
// what it tells.
struct ReferenceFreePreference : Preference {
  // An answer is its document's tail.
  std::vector<int64_t> tails(const std::vector<int64_t>& starts) const override;
  std::optional<DocumentSlopes> losses() const override;

  // Requires: filled documents. The log-probability of the answer: for sigmoid and hinge of all its
  // tokens, else the mean over them; what the answer is worth, times beta.
  double log_prob(size_t document) const;
  double reward(size_t document) const;
  // By how much the odds of a pair's preferred answer exceed the other's, in nats; the logarithm of
  // the sigmoid of that.
  double log_odds(size_t pair) const;
  double log_odds_ratio(size_t pair) const;

  ReferenceFreeOptions options;
  // [D] trained tokens of each document before its answer.
  std::vector<int64_t> prompt_targets;
  // Pairs divided by trained tokens, in the micro-batch's whole step, of the documents of
  // preferred answers.
  double pairs_per_chosen_token = 0;
};

// Requires: `documents` are filled, `prompt_targets` has as many entries; a loss that is known.
DocumentSlopes reference_free_losses(const ReferenceFreePreference& batch);

}  // namespace strata::nn
