// The layer of GPT-NeoX. Owns: its layers and the order of operations. Never: embedding and head
// (decoder_embedding.h, decoder_head.h), gathering, checkpointing, the chain (gpt_neox/model.h).
#pragma once

#include <string>
#include <vector>

#include "strata/models/gpt_neox/config.h"
#include "strata/models/model.h"
#include "strata/nn/attention/rope.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

class GptNeoXLayer final : public Block {
 public:
  // `rope` is shared by all layers and must outlive them.
  GptNeoXLayer(const GptNeoXConfig& config, int64_t index, at::ScalarType storage, nn::Rope& rope);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return "GPTNeoXLayer"; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // What attention's heads give, before `dense`.
  at::Tensor attend(const nn::Remakable& normed, const nn::ForwardContext& context);
  // residual + dropout(dense(mixed)); residual + dropout(mlp(normed)), the block's end.
  at::Tensor add_attention(const at::Tensor& mixed, const at::Tensor& residual,
                           const nn::ForwardContext& context);
  at::Tensor add_mlp(const nn::Remakable& normed, const at::Tensor& residual,
                     const nn::ForwardContext& context);

  GptNeoXConfig config_;
  int64_t index_;
  std::string path_;
  nn::Rope& rope_;
  nn::LayerNorm input_layernorm_, post_attention_layernorm_;
  nn::Linear query_key_value_, dense_;
  nn::Linear dense_h_to_4h_, dense_4h_to_h_;
};

}  // namespace strata::models
