// Attention of a layer of Gemma 4: heads of the layer's own shape, values with a norm, keys and
// values that later layers read. Owns: its projections and norms. Never: the norms around it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/gemma4/config.h"
#include "strata/models/model.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/linear.h"
#include "strata/nn/norm.h"

namespace strata::models {

class Gemma4Attention {
 public:
  // `rope`: of the layer's kind, must outlive it. `path`: "model.layers.0.self_attn".
  // `keys_slot`: the place on the shelf of keys that layers share, values lie after them.
  Gemma4Attention(const Gemma4Config& config, int64_t index, const std::string& path,
                  at::ScalarType storage, nn::Rope& rope, int keys_slot);

  std::vector<nn::Linear*> linears();
  void append_parameters(std::vector<nn::Parameter*>& list);
  // As Block's.
  std::vector<Shelved> makes() const;
  std::vector<int> reads() const;

  // [T, hidden] -> [T, heads * head_dim].
  at::Tensor mix(const nn::Remakable& normed, const nn::ForwardContext& context);
  const nn::Linear& output() const { return o_proj_; }

 private:
  struct KeysAndValues {
    at::Tensor k, v;
  };
  nn::AttentionOptions options() const;
  at::Tensor normed_heads(nn::RmsNorm& norm, const at::Tensor& x);
  // Those of the layer's own projections, keys not rotated. `given`: what k_proj and v_proj gave.
  KeysAndValues keys_and_values(const at::Tensor* given);
  at::Tensor attend_to_shelf(const at::Tensor& q, const std::optional<KeysAndValues>& made,
                             const nn::ForwardContext& context);

  Gemma4Layer layer_;
  int64_t num_heads_;
  int64_t window_;
  double eps_;
  nn::Rope& rope_;
  int keys_slot_;
  nn::Linear q_proj_;
  nn::RmsNorm q_norm_;
  // Without KeysOf::kEarlier.
  std::optional<nn::RmsNorm> k_norm_;
  std::optional<nn::Linear> k_proj_, v_proj_;
  nn::Linear o_proj_;
};

}  // namespace strata::models
