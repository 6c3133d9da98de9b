// The layer of Falcon, BLOOM and MPT, whose q, k and v are one matrix. Owns: its layers and the
// order of operations. Never: embedding and head (decoder_embedding.h, decoder_head.h), gathering,
// checkpointing, the chain (falcon/model.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/falcon/config.h"
#include "strata/models/model.h"
#include "strata/nn/attention/alibi.h"
#include "strata/nn/attention/rope.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

// How a model knows positions: one of both, which all layers share.
struct FalconPositions {
  std::optional<nn::Rope> rope;
  std::optional<nn::Alibi> alibi;
};

class FalconLayer final : public Block {
 public:
  // `positions` must outlive all layers.
  FalconLayer(const FalconConfig& config, int64_t index, at::ScalarType storage,
              FalconPositions& positions);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  bool is_parallel() const { return config_.norms != FalconNorms::kOneByOne; }
  // What attention's heads give, before `dense`, of the fused projection's output.
  at::Tensor attend(const at::Tensor& qkv, const nn::ForwardContext& context);
  // Side by side: x + dropout(attention + MLP). One by one: the sum after each.
  at::Tensor forward_side_by_side(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor forward_one_by_one(const at::Tensor& x, const nn::ForwardContext& context);

  FalconConfig config_;
  int64_t index_;
  std::string path_;
  FalconPositions& positions_;
  nn::Linear query_key_value_, dense_;
  nn::Linear dense_h_to_4h_, dense_4h_to_h_;
  nn::LayerNorm attention_norm_;
  std::optional<nn::LayerNorm> mlp_norm_;  // of one norm: none
};

}  // namespace strata::models
