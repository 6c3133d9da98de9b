// The decoder layer of GLM and GLM-4: Llama's with gate and up in one matrix and, in GLM-4, norms
// of what attention and MLP give. Owns: its layers and the order of operations. Never: embedding,
// head and chain, which are Llama's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/blocks.h"

namespace strata::models {

class GlmDecoderLayer final : public DecoderLayer {
 public:
  // `rope` is shared by all layers and must outlive them.
  GlmDecoderLayer(const LlamaConfig& config, int64_t index, at::ScalarType storage, nn::Rope& rope);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // x + attention(norm(x)); x + mlp(norm(x)), where the second terms may be normalised.
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);

  LlamaConfig config_;
  int64_t index_;
  std::string path_;
  nn::Rope& rope_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  nn::Linear gate_up_proj_, down_proj_;
  nn::RmsNorm input_layernorm_, post_attention_layernorm_;
  std::optional<nn::RmsNorm> attention_output_norm_, mlp_output_norm_;  // with output_norms
};

}  // namespace strata::models
