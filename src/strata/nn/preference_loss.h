// Losses over pairs of answers to one prompt: which of two is preferred is all that is known
// (direct preference optimisation and its relatives). Owns: what a pair costs, and how that changes
// with the log-probabilities. Never: computes those (chunked_cross_entropy.h), nor those of the
// reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace strata::nn {

// The names and the meanings are DPOConfig's of TRL; the ranges are checked where settings are.
struct PreferenceOptions {
  double beta = 0.1;
  std::vector<std::string> losses = {"sigmoid"};
  std::vector<double> weights = {};  // of each loss; empty: 1
  double label_smoothing = 0;        // of robust and exo_pair
  std::string divergence = "reverse_kl";
  double divergence_alpha = 0.5;  // of alpha_divergence
  double discopop_tau = 0.05;
  // What log-probabilities of tokens beyond the length of the pair's shorter answer count, from 0
  // to 1 (LD-DPO); the loss "sft" has them whole. None: all count whole.
  std::optional<double> ld_alpha = {};
};

// Of a document's trained tokens.
struct DocumentSums {
  double log_prob = 0;  // in nats
  double tail = 0;      // the part of it that ld_alpha weighs; 0 without one
  double correct = 0;   // tokens whose target has the largest logit
  double entropy = 0;   // of the predictions, in nats
  int64_t tokens = 0;

  double weighted_log_prob(const PreferenceOptions& options) const {
    return log_prob - (1 - options.ld_alpha.value_or(1)) * tail;
  }
};

// A micro-batch whose documents are pairs, the preferred answer first: what the head must know, and
// what it tells.
struct Preference {
  PreferenceOptions options;
  // [D] weighted log-probabilities of the documents by the model that training starts from.
  // Empty: the documents are summed, nothing is learnt.
  std::vector<double> reference;
  // [D] tokens of the answers themselves: also a document's first, which nothing predicts. Losses
  // by token divide by them, as the reference stack does.
  std::vector<int64_t> answer_tokens;
  // Of the step that the micro-batch belongs to: pairs by trained tokens of preferred answers. The
  // loss "sft" is a mean over those.
  double pairs_per_chosen_token = 0;
  std::vector<DocumentSums> documents;  // [D] filled by the head
};

struct PairLosses {
  double sum = 0;  // over the pairs
  // [D] d(sum) / d(log-probability of the document), of its tokens before the tail and of the tail.
  std::vector<double> slopes, tail_slopes;
};

// Requires: `documents` are filled, `reference` and `answer_tokens` have as many entries; losses
// that are known.
PairLosses pair_losses(const Preference& batch);

}  // namespace strata::nn
