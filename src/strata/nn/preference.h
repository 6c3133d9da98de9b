// Losses of preference optimisation, functions of the log-probabilities of whole answers: what the
// head and such a loss tell each other. Never: a loss (preference_loss.h, reference_free_loss.h,
// rated_loss.h), computing log-probabilities (chunked_cross_entropy.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace strata::nn {

// Sums over a document's trained tokens.
struct DocumentSums {
  double log_prob = 0;  // in nats
  double tail = 0;      // the part of it after the first of Preference::tails(); 0 without one
  double correct = 0;   // tokens whose target has the largest logit
  double entropy = 0;   // of the predictions, in nats
  int64_t tokens = 0;
  double mean_logits = 0;  // of each prediction the mean of its logits; 0 unless asked for
  // Over predictions, the log of the sum of each one's squared probabilities; 0 unless asked for.
  double log_squares = 0;
};

struct DocumentSlopes {
  double sum = 0;  // of the losses of all documents
  // [D] d(sum) / d(log-probability of the document), of its tokens before the tail and of the tail.
  std::vector<double> slopes, tail_slopes;
};

// A micro-batch whose documents are answers that somebody found better or worse: the losses of a
// method, derived from it, take the place of the tokens'.
struct Preference {
  virtual ~Preference() = default;

  // `starts` [D + 1]: which trained tokens of the micro-batch each document has. [D]: the first of
  // each that belongs to its tail; its end where there is none.
  virtual std::vector<int64_t> tails(const std::vector<int64_t>& starts) const {
    return {starts.begin() + 1, starts.end()};
  }
  virtual bool wants_mean_logits() const { return false; }
  virtual bool wants_log_squares() const { return false; }
  // Called after the documents are filled. No value: they are only summed, nothing is learnt.
  virtual std::optional<DocumentSlopes> losses() const { return std::nullopt; }

  std::vector<DocumentSums> documents;  // [D] filled by the head
};

}  // namespace strata::nn
