// LayerNorm of each head of queries or keys by itself. Owns: the weights and, where heads have
// their own, the autograd function. Never: norms of whole rows (nn/layer_norm.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/layer_norm.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// Whose the weights are.
enum class HeadNormWeights {
  kShared,      // one weight and one bias for all heads
  kOfHeads,     // one parameter [heads, head_dim]
  kOfEachHead,  // a parameter [head_dim] a head, "norms.0", "norms.1", ...
};

struct HeadNormOptions {
  HeadNormWeights weights;
  int64_t num_heads;
  int64_t head_dim;
  double eps;
};

class HeadNorm {
 public:
  // `path`: module path such as "model.layers.0.self_attn.q_norm".
  HeadNorm(const std::string& path, const HeadNormOptions& options, at::ScalarType storage);

  void append_parameters(std::vector<Parameter*>& list);

  // x [T, num_heads * head_dim] -> the same, in fp32 and rounded once.
  at::Tensor forward(const at::Tensor& x);

 private:
  HeadNormOptions options_;
  std::optional<LayerNorm> shared_;
  std::vector<std::unique_ptr<Parameter>> weights_;  // without `shared_`: one, or one a head
};

}  // namespace strata::nn
