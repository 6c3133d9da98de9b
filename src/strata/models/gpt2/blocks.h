// The layer of GPT-2, gpt_bigcode and GPT. Owns: its layers and the order of operations. Never:
// embedding and head (decoder_embedding.h, decoder_head.h), gathering, checkpointing, the chain
// (gpt2/model.h).
#pragma once

#include <string>
#include <vector>

#include "strata/models/gpt2/config.h"
#include "strata/models/model.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

class Gpt2Block final : public Block {
 public:
  Gpt2Block(const Gpt2Config& config, int64_t index, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // residual + dropout(attention(x)); residual + dropout(mlp(x)).
  at::Tensor add_attention(const nn::Remakable& x, const at::Tensor& residual,
                           const nn::ForwardContext& context);
  at::Tensor add_mlp(const nn::Remakable& x, const at::Tensor& residual,
                     const nn::ForwardContext& context);

  Gpt2Config config_;
  int64_t index_;
  std::string path_;
  nn::LayerNorm ln_1_;
  nn::Linear c_attn_, attention_c_proj_;
  nn::LayerNorm ln_2_;
  nn::Linear c_fc_, mlp_c_proj_;
};

}  // namespace strata::models
