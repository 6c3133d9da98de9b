#include "strata/nn/preference_loss.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "strata/base/error.h"
#include "strata/libtorch/without_autograd.h"

namespace strata::nn {
namespace {

// Of P pairs, [P] in fp64 on the CPU: log-ratios to the reference as they are and as the divergence
// sees them ("scores"), the reference's log-probabilities, and tokens of the answers.
struct Pairs {
  at::Tensor chosen_log_probs;
  at::Tensor chosen_ratios, rejected_ratios;
  at::Tensor chosen_reference, rejected_reference;
  at::Tensor chosen_scores, rejected_scores;
  at::Tensor chosen_tokens, rejected_tokens;
  double pairs_per_chosen_token;

  at::Tensor margin() const { return chosen_scores - rejected_scores; }
  at::Tensor margin_per_token() const {
    return chosen_scores / chosen_tokens.clamp_min(1) -
           rejected_scores / rejected_tokens.clamp_min(1);
  }
};

using Loss = at::Tensor (*)(const Pairs&, const PreferenceOptions&);

at::Tensor sigmoid_loss(const Pairs& pairs, const PreferenceOptions& options) {
  return -at::log_sigmoid(options.beta * pairs.margin());
}

at::Tensor sigmoid_norm_loss(const Pairs& pairs, const PreferenceOptions& options) {
  return -at::log_sigmoid(options.beta * pairs.margin_per_token());
}

at::Tensor hinge_loss(const Pairs& pairs, const PreferenceOptions& options) {
  return at::relu(1 - options.beta * pairs.margin());
}

at::Tensor ipo_loss(const Pairs& pairs, const PreferenceOptions& options) {
  return (pairs.margin_per_token() - 1 / (2 * options.beta)).square();
}

// The divergence of the model's choice between the two answers from one that errs with the
// probability label_smoothing.
at::Tensor exo_pair_loss(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor x = options.beta * pairs.margin();
  return at::sigmoid(x) * (at::log_sigmoid(x) - std::log1p(-options.label_smoothing)) +
         at::sigmoid(-x) * (at::log_sigmoid(-x) - std::log(options.label_smoothing));
}

at::Tensor nca_pair_loss(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor chosen = options.beta * pairs.chosen_ratios;
  const at::Tensor rejected = options.beta * pairs.rejected_ratios;
  return -at::log_sigmoid(chosen) - 0.5 * at::log_sigmoid(-chosen) -
         0.5 * at::log_sigmoid(-rejected);
}

// Unbiased where that share of the preferences is the wrong way round.
at::Tensor robust_loss(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor x = options.beta * pairs.margin();
  const double flipped = options.label_smoothing;
  return (flipped * at::log_sigmoid(-x) - (1 - flipped) * at::log_sigmoid(x)) / (1 - 2 * flipped);
}

at::Tensor sppo_hard_loss(const Pairs& pairs, const PreferenceOptions& options) {
  return (pairs.chosen_ratios - 0.5 / options.beta).square() +
         (pairs.rejected_ratios + 0.5 / options.beta).square();
}

// An answer is told from what the model thinks of it on its own, as a classifier tells.
at::Tensor bco_pair_loss(const Pairs& pairs, const PreferenceOptions& options) {
  return -at::log_sigmoid(options.beta * pairs.chosen_ratios) -
         at::log_sigmoid(-options.beta * pairs.rejected_ratios);
}

// One set of numbers is to lie above another one as a whole: the smallest above the smallest and so
// on, whichever pairs they are of.
at::Tensor dominance_loss(const at::Tensor& above, const at::Tensor& below,
                          const PreferenceOptions& options) {
  const auto ordered = [](const at::Tensor& values) {
    return std::get<0>(at::sort(values, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  };
  const at::Tensor x = options.beta * (ordered(above) - ordered(below));
  return (options.label_smoothing - 1) * at::log_sigmoid(x) -
         options.label_smoothing * at::log_sigmoid(-x);
}

at::Tensor aot_loss(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor of_reference = pairs.chosen_reference - pairs.rejected_reference;
  return dominance_loss(pairs.chosen_ratios - pairs.rejected_ratios + of_reference, of_reference,
                        options);
}

at::Tensor aot_unpaired_loss(const Pairs& pairs, const PreferenceOptions& options) {
  return dominance_loss(pairs.chosen_ratios, pairs.rejected_ratios, options);
}

at::Tensor apo_zero_loss(const Pairs& pairs, const PreferenceOptions& options) {
  return 1 - at::sigmoid(options.beta * pairs.chosen_ratios) +
         at::sigmoid(options.beta * pairs.rejected_ratios);
}

at::Tensor apo_down_loss(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor difference = pairs.chosen_ratios - pairs.rejected_ratios;
  return at::sigmoid(options.beta * pairs.chosen_ratios) + 1 -
         at::sigmoid(options.beta * difference);
}

at::Tensor discopop_loss(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor x = options.beta * pairs.margin();
  const at::Tensor share = at::sigmoid(x / options.discopop_tau);
  return -at::log_sigmoid(x) * (1 - share) + at::exp(-x) * share;
}

// The preferred answers as in supervised fine-tuning, its mean over the tokens of the whole step.
at::Tensor sft_loss(const Pairs& pairs, const PreferenceOptions&) {
  return -pairs.chosen_log_probs * pairs.pairs_per_chosen_token;
}

const std::vector<std::pair<std::string, Loss>>& table() {
  static const std::vector<std::pair<std::string, Loss>> losses{
      {"sigmoid", sigmoid_loss},
      {"hinge", hinge_loss},
      {"ipo", ipo_loss},
      {"exo_pair", exo_pair_loss},
      {"nca_pair", nca_pair_loss},
      {"robust", robust_loss},
      {"bco_pair", bco_pair_loss},
      {"sppo_hard", sppo_hard_loss},
      {"aot", aot_loss},
      {"aot_unpaired", aot_unpaired_loss},
      {"apo_zero", apo_zero_loss},
      {"apo_down", apo_down_loss},
      {"discopop", discopop_loss},
      {"sft", sft_loss},
      {"sigmoid_norm", sigmoid_norm_loss}};
  return losses;
}

Loss find_loss(const std::string& name) {
  for (const auto& [known, loss] : table()) {
    if (known == name) return loss;
  }
  throw InternalError("preference loss: found {}, expected one that the settings know", name);
}

// What the divergence between model and reference makes of a log-ratio: f'(ratio), up to what
// cancels in a difference.
at::Tensor scores_of(const at::Tensor& log_ratios, const PreferenceOptions& options) {
  const std::string& divergence = options.divergence;
  if (divergence == "forward_kl") return 1 - at::exp(-log_ratios);
  if (divergence == "js_divergence") return std::log(2.0) + at::log_sigmoid(log_ratios);
  const double slope = options.divergence_alpha - 1;
  if (divergence == "alpha_divergence" && std::abs(slope) >= 1e-6) {
    // Its limit at 1 is the reverse KL. The bound is the reference's, for its fp32.
    return (at::exp(at::clamp_max(slope * log_ratios, 80)) - 1) / slope;
  }
  return log_ratios;
}

// What a pair's losses count: how likely its answers are by token, against the answers that the
// model would give itself (the expectation of the same there).
double weight_of(const DocumentSums& document) {
  const auto tokens = static_cast<double>(std::max<int64_t>(document.tokens, 1));
  return std::exp((document.log_prob - document.log_squares) / tokens);
}

at::Tensor weights_of_pairs(const PairPreference& batch) {
  const auto pairs = static_cast<int64_t>(batch.documents.size() / 2);
  at::Tensor weights = at::ones({pairs}, at::kDouble);
  for (int64_t i = 0; batch.options.weighs_pairs && i < pairs; ++i) {
    const auto first = static_cast<size_t>(2 * i);
    weights.data_ptr<double>()[i] =
        weight_of(batch.documents[first]) * weight_of(batch.documents[first + 1]);
  }
  return weights;
}

}  // namespace

std::vector<int64_t> PairPreference::tails(const std::vector<int64_t>& starts) const {
  std::vector<int64_t> tails = Preference::tails(starts);
  if (!options.ld_alpha) return tails;
  for (size_t d = 0; d + 1 < tails.size(); d += 2) {
    const int64_t shared = std::min(starts[d + 1] - starts[d], starts[d + 2] - starts[d + 1]);
    tails[d] = starts[d] + shared;
    tails[d + 1] = starts[d + 1] + shared;
  }
  return tails;
}

std::optional<DocumentSlopes> PairPreference::losses() const {
  if (reference.empty()) return std::nullopt;
  return pair_losses(*this);
}

DocumentSlopes pair_losses(const PairPreference& batch) {
  const auto count = static_cast<int64_t>(batch.documents.size());
  const PreferenceOptions& options = batch.options;
  at::Tensor front = at::empty({count}, at::kDouble), tail = at::empty_like(front);
  at::Tensor tokens = at::empty_like(front), reference = at::empty_like(front);
  for (int64_t d = 0; d < count; ++d) {
    const auto at_document = static_cast<size_t>(d);
    const DocumentSums& document = batch.documents[at_document];
    front.data_ptr<double>()[d] = document.log_prob - document.tail;
    tail.data_ptr<double>()[d] = document.tail;
    tokens.data_ptr<double>()[d] = static_cast<double>(batch.answer_tokens.at(at_document));
    reference.data_ptr<double>()[d] = batch.reference.at(at_document);
  }
  front.requires_grad_();
  tail.requires_grad_();

  // Called while a head runs, which takes its gradients itself.
  const WithAutograd with_gradient;
  const auto chosen = [](const at::Tensor& all) { return all.slice(0, 0, {}, 2); };
  const auto rejected = [](const at::Tensor& all) { return all.slice(0, 1, {}, 2); };
  const at::Tensor ratios = front + options.ld_alpha.value_or(1) * tail - reference;
  const at::Tensor scores = scores_of(ratios, options);
  const Pairs pairs{.chosen_log_probs = chosen(front + tail),
                    .chosen_ratios = chosen(ratios),
                    .rejected_ratios = rejected(ratios),
                    .chosen_reference = chosen(reference),
                    .rejected_reference = rejected(reference),
                    .chosen_scores = chosen(scores),
                    .rejected_scores = rejected(scores),
                    .chosen_tokens = chosen(tokens),
                    .rejected_tokens = rejected(tokens),
                    .pairs_per_chosen_token = batch.pairs_per_chosen_token};
  const at::Tensor weights = weights_of_pairs(batch);
  at::Tensor sum = (front + tail).sum() * 0;
  for (size_t i = 0; i < options.losses.size(); ++i) {
    const double weight = options.weights.empty() ? 1 : options.weights[i];
    sum = sum + weight * (weights * find_loss(options.losses[i])(pairs, options)).sum();
  }
  const auto slopes = torch::autograd::grad({sum}, {front, tail});
  const auto numbers = [count](const at::Tensor& values) {
    const double* first = values.const_data_ptr<double>();
    return std::vector<double>(first, first + count);
  };
  return {sum.item<double>(), numbers(slopes[0]), numbers(slopes[1])};
}

}  // namespace strata::nn
