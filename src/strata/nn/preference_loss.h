// Losses over pairs of answers to one prompt: which of two is preferred is all that is known
// (direct preference optimisation and its relatives). Owns: what a pair costs, and how that changes
// with the log-probabilities. Never: computes those (chunked_cross_entropy.h), nor those of the
// reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/nn/preference.h"

namespace strata::nn {

// The names and the meanings are DPOConfig's of TRL; the ranges are checked where settings are.
struct PreferenceOptions {
  double beta = 0.1;
  std::vector<std::string> losses = {"sigmoid"};
  std::vector<double> weights = {};  // of each loss; empty: 1
  double label_smoothing = 0;        // of robust, exo_pair, aot and aot_unpaired
  std::string divergence = "reverse_kl";
  double divergence_alpha = 0.5;  // of alpha_divergence
  double discopop_tau = 0.05;
  // What log-probabilities of tokens beyond the length of the pair's shorter answer count, from 0
  // to 1 (LD-DPO); the loss "sft" has them whole. None: all count whole.
  std::optional<double> ld_alpha = {};
  // What each loss of a pair counts: how likely its answers are to the model by token, against what
  // it would answer itself (WPO, Zhou et al. 2024, equation 2). Nothing is learnt of that.
  bool weighs_pairs = false;
};

// A micro-batch whose documents are pairs, the preferred answer first: what the head must know, and
// what it tells.
struct PairPreference : Preference {
  // With ld_alpha, the tokens beyond the length of the shorter document of each pair.
  std::vector<int64_t> tails(const std::vector<int64_t>& starts) const override;
  bool wants_log_squares() const override { return options.weighs_pairs && !reference.empty(); }
  std::optional<DocumentSlopes> losses() const override;
  double weighted_log_prob(const DocumentSums& document) const {
    return document.log_prob - (1 - options.ld_alpha.value_or(1)) * document.tail;
  }

  PreferenceOptions options;
  // [D] weighted log-probabilities of the documents by the model that training starts from.
  // Empty: the documents are summed, nothing is learnt.
  std::vector<double> reference;
  // [D] tokens of the answers themselves: also a document's first, which nothing predicts. Losses
  // by token divide by them, as the reference stack does.
  std::vector<int64_t> answer_tokens;
  // Pairs divided by trained tokens of preferred answers, in the micro-batch's whole step. The
  // loss "sft" is a mean over those.
  double pairs_per_chosen_token = 0;
};

// Requires: `documents` are filled, `reference` and `answer_tokens` have as many entries; losses
// that are known.
DocumentSlopes pair_losses(const PairPreference& batch);

}  // namespace strata::nn
