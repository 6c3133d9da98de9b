// The low-rank branch of a linear layer (LoRA, Hu et al. 2021): its weights, its products and what
// identifies its dropout. Owns: the branch's mathematics. Never: autograd; nn/linear.cpp and
// nn/chunked_cross_entropy.cpp call these functions inside their own functions. adapters/ decides
// which layers get a branch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// y += (B(A(dropout(x))) + bias) * scaling. The branch computes in the type of A: x is cast to it
// and the result is cast back, as PEFT does.
struct LowRankBranch {
  Parameter a;  // [r, in_features]
  Parameter b;  // [out_features, r]
  double scaling = 1.0;
  double dropout = 0.0;
  uint64_t layer_id = 0;                      // distinguishes the dropout masks of the layers (I6)
  std::unique_ptr<Parameter> bias = {};       // [out_features], of B (PEFT's lora_bias)
  std::unique_ptr<Parameter> magnitude = {};  // [out_features]: the branch is DoRA's (nn/dora.h)

  bool trains() const { return a.requires_grad() || b.requires_grad(); }
  // A, B and what else there is, in the order of PEFT's named_parameters().
  void append_parameters(std::vector<Parameter*>& list);
};

// What a dropout mask depends on besides the layer. `token_keys` int64 [T]; undefined: no dropout.
struct DropoutDraw {
  at::Tensor token_keys;
  DrawKey draw;

  static DropoutDraw from(const ForwardContext& context);
  DropoutDraw narrow(int64_t start, int64_t length) const;
};

// x as the branch sees it: in the type of A, with its share dropped.
at::Tensor branch_input(const at::Tensor& x, const LowRankBranch& branch, const DropoutDraw& draw);
// Whether that drops anything.
bool drops(const LowRankBranch& branch, const DropoutDraw& draw);

// The key of ops::dropout for one layer in one micro-step: a mix of seed, step, micro-step, layer.
uint64_t dropout_key(const DrawKey& draw, uint64_t layer_id);

// Branches of layers of one input (q, k, v; gate, up). Where nothing is dropped and the types are
// the same, what they do with that input is one product for all.
using LowRankGroup = std::vector<LowRankBranch*>;

// The outputs of all A beside each other, [T, sum of r], for x [T, in_features]: backward needs
// them.
at::Tensor low_rank_hidden(const at::Tensor& x, const LowRankGroup& group, const DropoutDraw& draw);
// Adds the branch's output to y [T, out_features] in place; `hidden` [T, r] is A's output.
void add_low_rank_(at::Tensor y, const at::Tensor& hidden, const LowRankBranch& branch);
// The same where y has no value yet. Requires: comes_first().
void start_with_low_rank(at::Tensor y, const at::Tensor& hidden, const LowRankBranch& branch);
// Whether what branches give to `x` [T, in_features] and get from it is written before the layers'
// own products are added to it, instead of being added to those: a product adds at no cost, and a
// thin one that adds reads all that it writes. On GPUs; not where dropout stands between.
bool comes_first(const at::Tensor& x, const LowRankGroup& group, const DropoutDraw& draw);
// Both for one branch; returns A's output.
at::Tensor low_rank_forward_(at::Tensor y, const at::Tensor& x, const LowRankBranch& branch,
                             const DropoutDraw& draw);

struct LowRankSaved {
  at::Tensor x;       // [T, in_features], before cast and dropout
  at::Tensor hidden;  // low_rank_hidden()
};

// Writes the gradients of all A and B where they train and, where `dx` is defined, adds the
// branches' part of the input's gradient to it in place, or with beta 0, which requires
// comes_first(), writes it there; `dy` [T, out_features] of each branch. Masks are drawn again.
void low_rank_backward(const std::vector<at::Tensor>& dy, const LowRankSaved& saved,
                       const LowRankGroup& group, const DropoutDraw& draw, at::Tensor dx,
                       float beta = 1);
// The same for one branch.
void low_rank_backward(const at::Tensor& dy, const LowRankSaved& saved, LowRankBranch& branch,
                       const DropoutDraw& draw, at::Tensor dx);

}  // namespace strata::nn
