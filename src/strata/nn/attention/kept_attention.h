// What attention computed in a block's forward pass, and the residual with its projection, for the
// same block when it runs again for its backward pass: of long documents attention is what costs
// most to compute a second time, and of short ones no byte saves as much as those of the sum,
// after a product. Owns: the results, in the order of the calls. Never: which blocks keep them;
// the schedule says.
#pragma once

#include <utility>
#include <vector>

#include "strata/base/error.h"
#include "strata/ops/attention/attention.h"

namespace strata::nn {

// Memory: an output and its sums a call, and a residual, from the forward pass until the second one
// has run.
class KeptAttention {
 public:
  // The result of the next call: computed and kept in the first pass, taken in the second.
  template <typename Compute>
  ops::AttentionResult next(const Compute& compute) {
    if (!runs_again_) return results_.made.emplace_back(compute());
    return results_.take("attention");
  }

  // The sums of residuals, of the first pass and in the second.
  void keep_sum(const at::Tensor& sum) { sums_.made.push_back(sum); }
  at::Tensor take_sum() { return sums_.take("sum behind attention"); }

  void run_again() { runs_again_ = true; }
  bool runs_again() const { return runs_again_; }

 private:
  template <typename Result>
  struct Results {
    std::vector<Result> made;
    size_t next = 0;

    Result take(const char* subject) {
      if (next == made.size()) {
        throw InternalError(
            "{}: found more calls when a block ran again than in its forward pass, {}; report this "
            "as a bug",
            subject, made.size());
      }
      return std::exchange(made[next++], {});
    }
  };

  Results<ops::AttentionResult> results_;
  Results<at::Tensor> sums_;
  bool runs_again_ = false;
};

// Null: nothing is kept.
template <typename Compute>
ops::AttentionResult once(KeptAttention* kept, const Compute& compute) {
  return kept == nullptr ? compute() : kept->next(compute);
}

}  // namespace strata::nn
