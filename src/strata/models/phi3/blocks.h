// The decoder layer of Phi-3: Llama's with q, k, v in one matrix and gate, up in another. Owns: its
// layers and the order of operations. Never: embedding, head and chain, which are Llama's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/llama/blocks.h"

namespace strata::models {

class Phi3DecoderLayer final : public DecoderLayer {
 public:
  // `rope` is shared by all layers and must outlive them.
  Phi3DecoderLayer(const LlamaConfig& config, int64_t index, at::ScalarType storage,
                   nn::Rope& rope);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // x + attention(norm(x)); x + mlp(norm(x)).
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);

  LlamaConfig config_;
  int64_t index_;
  std::string path_;
  nn::Rope& rope_;
  nn::Linear o_proj_, qkv_proj_;  // in the reference's order
  Mlp mlp_;
  nn::RmsNorm input_layernorm_, post_attention_layernorm_;
};

}  // namespace strata::models
