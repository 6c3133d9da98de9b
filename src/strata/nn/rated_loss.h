// The loss over single answers that somebody found desirable or not (Kahneman-Tversky optimisation,
// Ethayarajh et al. 2024, equation 7; APO-zero without pairs, D'Oosterlinck et al. 2024). Owns:
// what an answer costs, and how that changes with its log-probability. Never: computes those
// (chunked_cross_entropy.h), nor those of the reference, nor the divergence.
// Source: TRL KTOTrainer._compute_loss.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/nn/preference.h"

namespace strata::nn {

// The names and the meanings are KTOConfig's of TRL; the ranges are checked where settings are.
struct RatedOptions {
  double beta = 0.1;
  std::string loss = "kto";  // or apo_zero_unpaired, which knows no divergence
  double desirable_weight = 1;
  double undesirable_weight = 1;
};

// A micro-batch whose documents are rated answers: what the head must know, and what it tells.
struct RatedPreference : Preference {
  bool wants_mean_logits() const override { return !reference.empty(); }
  std::optional<DocumentSlopes> losses() const override;

  RatedOptions options;
  // [D] log-probabilities of the documents by the model that training starts from. Empty: the
  // documents are summed, nothing is learnt.
  std::vector<double> reference;
  std::vector<bool> are_desirable;  // [D]
  // How far the model is from the reference, at least 0, in nats; nothing is learnt of it.
  double divergence = 0;
};

// Requires: `documents` are filled, `reference` and `are_desirable` have as many entries; a loss
// that is known.
DocumentSlopes rated_losses(const RatedPreference& batch);

}  // namespace strata::nn
