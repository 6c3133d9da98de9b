#include "strata/nn/reference_free_loss.h"

#include <algorithm>
#include <cmath>

#include "strata/base/error.h"

namespace strata::nn {
namespace {

// A function where it was asked for, and its derivative.
struct Point {
  double value, slope;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// Neither end overflows.
double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

// log(1 - e^x) for x < 0: near 0 the exponential would cancel, far below it the difference.
double log_of_rest(double x) {
  return x < -std::log(2.0) ? std::log1p(-std::exp(x)) : std::log(-std::expm1(x));
}

// log(p / (1 - p)) of x = log p. A probability that fp32 does not tell from 1 counts as its last
// one below: that of 1 would be infinite, and so would its slope be.
Point log_odds_of(double x) {
  x = std::min(x, -std::ldexp(1.0, -24));
  return {x - log_of_rest(x), -1 / std::expm1(x)};
}

Point worth_of(double log_prob, double alpha) {
  if (alpha == 0) return {log_prob, 1};
  const double power = std::exp(-alpha * log_prob);
  return {(1 - power) / alpha, power};
}

// Where the preference is the wrong way round with the probability `flipped`.
Point smoothed_loss(double x, double flipped) {
  return {-(1 - flipped) * log_sigmoid(x) - flipped * log_sigmoid(-x),
          -(1 - flipped) * sigmoid(-x) + flipped * sigmoid(x)};
}

// Of by how much the preferred answer is worth more than the other one, or has the larger odds.
Point loss_of(double margin, const ReferenceFreeOptions& options) {
  const std::string& loss = options.loss;
  const double beta = options.beta;
  if (loss == "odds_ratio") return {-beta * log_sigmoid(margin), -beta * sigmoid(-margin)};
  if (loss == "sigmoid" || loss == "simpo") {
    const double wanted = loss == "simpo" ? options.simpo_gamma : 0;
    const Point found = smoothed_loss(beta * margin - wanted, options.label_smoothing);
    return {found.value, beta * found.slope};
  }
  if (loss == "hinge") {
    const double rest = 1 - beta * margin;
    return {std::max(rest, 0.0), rest > 0 ? -beta : 0};
  }
  if (loss != "ipo") {
    throw InternalError("reference-free loss: found {}, expected one that the settings know", loss);
  }
  const double rest = margin - 1 / (2 * beta);
  return {rest * rest, 2 * rest};
}

// What log-probabilities of answers are divided by.
double divisor_of(const ReferenceFreePreference& batch, size_t document) {
  if (batch.options.loss == "sigmoid" || batch.options.loss == "hinge") return 1;
  const int64_t tokens = batch.documents[document].tokens - batch.prompt_targets.at(document);
  return static_cast<double>(std::max<int64_t>(tokens, 1));
}

// What the loss compares two answers by.
Point measure_of(const ReferenceFreePreference& batch, size_t document) {
  const double log_prob = batch.log_prob(document);
  const Point found = batch.options.loss == "odds_ratio" ? log_odds_of(log_prob)
                                                         : worth_of(log_prob, batch.options.alpha);
  return {found.value, found.slope / divisor_of(batch, document)};
}

}  // namespace

std::vector<int64_t> ReferenceFreePreference::tails(const std::vector<int64_t>& starts) const {
  std::vector<int64_t> tails(starts.begin(), starts.end() - 1);
  for (size_t d = 0; d < tails.size(); ++d) tails[d] += prompt_targets.at(d);
  return tails;
}

std::optional<DocumentSlopes> ReferenceFreePreference::losses() const {
  return reference_free_losses(*this);
}

double ReferenceFreePreference::log_prob(size_t document) const {
  return documents[document].tail / divisor_of(*this, document);
}

double ReferenceFreePreference::reward(size_t document) const {
  return options.beta * worth_of(log_prob(document), options.alpha).value;
}

double ReferenceFreePreference::log_odds(size_t pair) const {
  return log_odds_of(log_prob(2 * pair)).value - log_odds_of(log_prob(2 * pair + 1)).value;
}

double ReferenceFreePreference::log_odds_ratio(size_t pair) const {
  return log_sigmoid(log_odds(pair));
}

DocumentSlopes reference_free_losses(const ReferenceFreePreference& batch) {
  const double per_token = batch.options.nll_weight * batch.pairs_per_chosen_token;
  DocumentSlopes result;
  for (size_t d = 0; d + 1 < batch.documents.size(); d += 2) {
    const Point chosen = measure_of(batch, d), rejected = measure_of(batch, d + 1);
    const Point loss = loss_of(chosen.value - rejected.value, batch.options);
    result.sum += loss.value - per_token * batch.documents[d].log_prob;
    result.slopes.insert(result.slopes.end(), {-per_token, 0});
    result.tail_slopes.insert(result.tail_slopes.end(), {loss.slope * chosen.slope - per_token,
                                                         -loss.slope * rejected.slope});
  }
  return result;
}

}  // namespace strata::nn
