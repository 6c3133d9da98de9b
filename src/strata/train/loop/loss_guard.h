// Whether a batch's loss and gradient are fit to be learnt from. Owns: the running mean of the loss
// and the count of bad batches in a row. Never: what is done about a bad batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strata/base/json.h"

namespace strata::train {

// Every rank must report the same numbers; then every rank gets the same verdicts.
class LossGuard {
 public:
  // After this many left-out batches in a row, the weights and not the batches must be bad.
  static constexpr int64_t kMostInARow = 3;
  // Losses that the mean must have seen before a spike is one.
  static constexpr int64_t kFirstLosses = 5;

  // `max_spike`: a loss above this times the running mean is bad; where losses are below 0, as some
  // of preferences are, one that lies as far above the mean as their magnitude says; 0: only what
  // is not finite.
  explicit LossGuard(double max_spike) : max_spike_(max_spike) {}

  // Why the batch must not be learnt from ("a loss of nan, expected a finite one"), or nothing:
  // then its loss enters the mean, which moves by a twentieth of the difference.
  std::optional<std::string> judge(double loss, double gradient_norm);
  // Bad batches since the last good one.
  int64_t num_in_a_row() const { return in_a_row_; }
  // The weights are others now: what was bad before says nothing about the next batch.
  void forgive() { in_a_row_ = 0; }

  // The state that checkpoints hold.
  Json state() const;
  void load(const Json& state);

 private:
  double most_expected() const;

  double max_spike_;
  double mean_ = 0;
  double magnitude_ = 0;  // the mean of absolute losses
  int64_t seen_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace strata::train
