// The loss that balances the experts of a mixture, over all its layers at once (Fedus et al. 2021,
// equations 4 to 6): experts * the sum over experts of share of choices * mean probability. Owns:
// what the routers of one micro-batch add up, and the gradient that they get back. Never: the
// choice (nn/experts/router.h), what the loss is weighted by (train/loop/balancing.h).
// Source: transformers load_balancing_loss_func.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::comm {
class Group;
}

namespace strata::nn {

// The balance of one micro-batch. Every layer adds once in forward; the first call of gradient or
// loss ends that, and a layer that adds after it is an InternalError: it ran twice. Where ranks
// share rows, that question adds up what all of them have: every rank of them must ask.
// Invariants: the gradient is the same for every token of every layer, and needs the shares alone,
// which are constant; so layers may run backward, and again, one by one.
// Memory: two rows of as many numbers as there are experts.
class ExpertBalance {
 public:
  // Backward starts from loss * `scale`; 0: the loss is measured and trains nothing. `sequence`:
  // the ranks that share the micro-batch's rows; null: none do.
  explicit ExpertBalance(double scale, comm::Group* sequence = nullptr)
      : scale_(scale), sequence_(sequence) {}

  // A layer's `probabilities`, fp32 [T, E], and the experts of its tokens, int64 [T, k]. T may be a
  // part of the `num_tokens` of all ranks that share rows.
  void add(const at::Tensor& probabilities, const at::Tensor& chosen, int64_t num_tokens);

  // All layers have added, on all ranks; gradient() and loss() ask for it by themselves.
  void complete();
  bool has_gradient() const { return scale_ != 0; }
  // The gradient of a token's probabilities, fp32 [E].
  const at::Tensor& gradient();
  // 0 where no layer has experts. Waits for the device.
  double loss();

 private:
  double scale_;
  comm::Group* sequence_;
  bool is_complete_ = false;
  int64_t num_rows_ = 0;      // tokens, of all layers and ranks
  at::Tensor choices_;        // int64 [E]
  at::Tensor probabilities_;  // fp32 [E], sums
  at::Tensor gradient_;
};

}  // namespace strata::nn
