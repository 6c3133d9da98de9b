// What attention computed in a block's forward pass, for the same block when it runs again for its
// backward pass: of long documents attention is what costs most to compute a second time.
// Owns: the results, in the order of the calls. Never: which blocks keep them; the schedule says.
#pragma once

#include <utility>
#include <vector>

#include "strata/base/error.h"
#include "strata/ops/attention/attention.h"

namespace strata::nn {

// Memory: an output and its sums a call, from the forward pass until the second one has run.
class KeptAttention {
 public:
  // Of the next call: computed and kept in the first pass, taken in the second.
  template <typename Compute>
  ops::AttentionResult next(const Compute& compute) {
    if (!runs_again_) return results_.emplace_back(compute());
    if (next_ == results_.size()) {
      throw InternalError(
          "attention: found more calls when a block ran again than in its forward pass, {}; report "
          "this as a bug",
          results_.size());
    }
    return std::exchange(results_[next_++], {});
  }

  void run_again() { runs_again_ = true; }

 private:
  std::vector<ops::AttentionResult> results_;
  size_t next_ = 0;
  bool runs_again_ = false;
};

// Null: nothing is kept.
template <typename Compute>
ops::AttentionResult once(KeptAttention* kept, const Compute& compute) {
  return kept == nullptr ? compute() : kept->next(compute);
}

}  // namespace strata::nn
