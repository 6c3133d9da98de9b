// The layer of decoders with LayerNorm and rotated heads whose q, k and v are matrices of their own
// (StarCoder 2, Command R, Phi, StableLM, OLMo, Nemotron, Jais 2, GPT-J, CodeGen, and
// GPT-Neo, whose heads are not rotated). Owns: its layers and the order
// of operations. Never: embedding and head (decoder_embedding.h, decoder_head.h), gathering,
// checkpointing, the chain (rotary_decoder/model.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/model.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/nn/attention/rope.h"
#include "strata/nn/head_norm.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

class RotaryDecoderLayer final : public Block {
 public:
  // `rope` is shared by all layers and must outlive them; null where positions are learned.
  RotaryDecoderLayer(const RotaryDecoderConfig& config, int64_t index, at::ScalarType storage,
                     nn::Rope* rope);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // Layers that read the input of attention, and of the MLP.
  std::vector<const nn::Linear*> readers_of_attention() const;
  std::vector<const nn::Linear*> readers_of_mlp() const;
  // residual + what attention, or the MLP, makes of the outputs of its readers.
  at::Tensor add_attention(std::vector<at::Tensor> qkv, const at::Tensor& residual,
                           const nn::ForwardContext& context);
  at::Tensor add_mlp(const std::vector<at::Tensor>& hidden, const at::Tensor& residual,
                     const nn::ForwardContext& context);

  RotaryDecoderConfig config_;
  int64_t index_;
  std::string path_;
  nn::Rope* rope_;
  std::vector<nn::Linear> qkv_;  // q, k and v, or all of them in one
  nn::Linear output_;
  std::optional<nn::HeadNorm> q_norm_, k_norm_;
  std::optional<nn::Linear> mlp_gate_;
  nn::Linear mlp_input_, mlp_output_;
  nn::LayerNorm input_layernorm_;
  std::optional<nn::LayerNorm> mlp_layernorm_;  // of a layer that is not parallel
};

}  // namespace strata::models
