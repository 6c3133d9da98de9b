// Linear layers over parameters: y = x W^T + b, with an optional low-rank branch and an optional
// residual. Owns: the autograd function that reads the weights again in backward and writes their
// gradients in place. Never: weights as autograd variables, nor activations kept for frozen
// weights.
//
// T tokens; x [T, in_features] contiguous, of the compute type of the weight or fp32, in which
// products are taken then.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/low_rank.h"
#include "strata/nn/parameter.h"
#include "strata/nn/remakable.h"
#include "strata/nn/rescale.h"
#include "strata/nn/token_rows.h"
#include "strata/nn/vera.h"

namespace strata::nn {

// Invariants: I1, I2. Every forward under grad mode with an input that requires grad is followed by
// at most one backward, which writes each trainable gradient exactly once.
class Linear {
 public:
  struct Options {
    int64_t in_features;
    int64_t out_features;
    bool bias = false;
    at::ScalarType storage;
    bool transposed = false;  // the weight is [in_features, out_features]
  };

  // `path`: module path such as "model.layers.0.self_attn.q_proj".
  Linear(std::string path, const Options& options);
  // A layer whose weight belongs to another layer too (tied embeddings); without bias of its own.
  Linear(std::string path, std::shared_ptr<Parameter> tied_weight);

  const std::string& path() const { return path_; }
  int64_t in_features() const { return weight_->shape()[weight_->is_transposed() ? 0 : 1]; }
  int64_t out_features() const { return weight_->shape()[weight_->is_transposed() ? 1 : 0]; }
  Parameter& weight() const { return *weight_; }
  const std::shared_ptr<Parameter>& shared_weight() const { return weight_; }
  // Ends a tie: the layer gets a weight of its own, or another layer's.
  void set_weight(std::shared_ptr<Parameter> weight) { weight_ = std::move(weight); }
  Parameter* bias() const { return bias_.get(); }
  // [out_features] or [1, out_features], under a name of its own.
  void attach_bias(std::unique_ptr<Parameter> bias) { bias_ = std::move(bias); }
  LowRankBranch* low_rank() const { return low_rank_.get(); }
  bool is_dora() const { return low_rank_ != nullptr && low_rank_->magnitude != nullptr; }
  void attach_low_rank(std::unique_ptr<LowRankBranch> branch);
  // Rows of single tokens that train in place of a tied weight's. The loss and logits of a head
  // look at them; forward() does not.
  const std::shared_ptr<TokenRows>& token_rows() const { return token_rows_; }
  void attach_token_rows(std::shared_ptr<TokenRows> rows) { token_rows_ = std::move(rows); }
  Vera* vera() const { return vera_.get(); }
  void attach_vera(std::unique_ptr<Vera> vera) { vera_ = std::move(vera); }
  Rescale* rescale() const { return rescale_.get(); }
  void attach_rescale(std::unique_ptr<Rescale> rescale) { rescale_ = std::move(rescale); }

  // Weight, bias, A, B, factors: those that there are, in the order of the reference's
  // named_parameters().
  void append_parameters(std::vector<Parameter*>& list) const;

  // [T, out_features].
  at::Tensor forward(const at::Tensor& x, const ForwardContext& context) const;
  // residual + forward(x); the residual's gradient is the output's.
  at::Tensor forward_add(const Remakable& x, const at::Tensor& residual,
                         const ForwardContext& context) const;
  // forward_add() after attention: where what attention computed is kept, so is this sum, and the
  // product is not run again (nn/attention/kept_attention.h). Not DoRA's, which needs its output.
  at::Tensor forward_add_once(const Remakable& x, const at::Tensor& residual,
                              const ForwardContext& context) const;
  // As forward_add() at the end of a block: where context.pass.wants_output is false, what its
  // gradients need is kept and the sum is not computed; the result is then of the right shape
  // alone.
  at::Tensor forward_add_last(const Remakable& x, const at::Tensor& residual,
                              const ForwardContext& context) const;
  // forward() of which the block's end alone reads the result: as forward_add_last().
  at::Tensor forward_last(const Remakable& x, const ForwardContext& context) const;

 private:
  // The sum, unless it is not wanted or `known`.
  at::Tensor add_to(const at::Tensor& residual, const Remakable& x, const ForwardContext& context,
                    bool wants_output, const at::Tensor& known = {}) const;

  std::string path_;
  std::shared_ptr<Parameter> weight_;
  std::unique_ptr<Parameter> bias_;
  std::unique_ptr<LowRankBranch> low_rank_;
  std::unique_ptr<Vera> vera_;
  std::unique_ptr<Rescale> rescale_;
  std::shared_ptr<TokenRows> token_rows_;
};

// The outputs of several layers of one input (q, k, v; gate, up) as one autograd function: the
// input is saved once (or made again once) and its gradient is summed inside the matrix products.
std::vector<at::Tensor> linear_shared_input(std::vector<const Linear*> layers, const Remakable& x,
                                            const ForwardContext& context);

}  // namespace strata::nn
