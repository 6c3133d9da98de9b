// LayerNorm over a weight and a bias, over a weight alone, or over neither. Owns: the autograd
// function around ops::layer_norm. Never: the kernel.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"
#include "strata/nn/remakable.h"

namespace strata::nn {

// The parameters of a norm. kDistanceAndBias: what multiplies is 1 more than the weight.
enum class LayerNormAffine { kNone, kWeight, kWeightAndBias, kDistanceAndBias };

class LayerNorm {
 public:
  // `path`: module path such as "transformer.h.0.ln_1".
  LayerNorm(const std::string& path, int64_t hidden, double eps, at::ScalarType storage,
            LayerNormAffine affine = LayerNormAffine::kWeightAndBias);

  void append_parameters(std::vector<Parameter*>& list);

  // x [T, hidden] -> [T, hidden].
  at::Tensor forward(const at::Tensor& x);

  // The norm of x and x itself for the residual branch, as RmsNorm::forward_with_residual().
  struct Branches {
    Remakable normed;
    at::Tensor residual;
  };
  Branches forward_with_residual(const at::Tensor& x);

 private:
  std::optional<Parameter> weight_, bias_;
  double eps_;
  bool counts_from_one_;
};

}  // namespace strata::nn
