#include "strata/nn/rated_loss.h"

#include <cmath>

#include "strata/base/error.h"

namespace strata::nn {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

std::optional<DocumentSlopes> RatedPreference::losses() const {
  if (reference.empty()) return std::nullopt;
  return rated_losses(*this);
}

// Of a log-ratio r to the reference a desirable answer costs sigmoid(-x), another one sigmoid(x),
// where x is beta * (r - divergence), so that both slopes are those of sigmoid(x) up to the sign.
DocumentSlopes rated_losses(const RatedPreference& batch) {
  const RatedOptions& options = batch.options;
  const bool is_kto = options.loss == "kto";
  if (!is_kto && options.loss != "apo_zero_unpaired") {
    throw InternalError("rated loss: found {}, expected one that the settings know", options.loss);
  }
  DocumentSlopes result;
  for (size_t d = 0; d < batch.documents.size(); ++d) {
    const bool is_desirable = batch.are_desirable.at(d);
    const double weight = is_desirable ? options.desirable_weight : options.undesirable_weight;
    const double ratio = batch.documents[d].log_prob - batch.reference.at(d);
    const double x = options.beta * (ratio - (is_kto ? batch.divergence : 0));
    result.sum += weight * sigmoid(is_desirable ? -x : x);
    const double slope = weight * options.beta * sigmoid(x) * sigmoid(-x);
    result.slopes.push_back(is_desirable ? -slope : slope);
  }
  result.tail_slopes.assign(result.slopes.size(), 0);
  return result;
}

}  // namespace strata::nn
