// The blocks of Gemma 4: the embedding with its vectors for each layer, the decoder layer. Owns:
// their layers and the order of operations. Never: attention's inside (attention.h), the head
// (llama/blocks.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/gemma4/attention.h"
#include "strata/models/gemma4/mixture.h"
#include "strata/models/llama/blocks.h"
#include "strata/models/llama/mlp.h"

namespace strata::models {

// The places of the shelf: keys and values of layers with a window, those of global layers, then
// the vectors of each layer.
constexpr int kLocalKeys = 0, kGlobalKeys = 2, kFirstLayerVectors = 4;

// The token's row, and from it and a second table a vector for each layer.
class Gemma4Embedding final : public Block, public HasRowScale {
 public:
  Gemma4Embedding(const Gemma4Config& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return tokens_.class_name(); }
  std::string path() const override { return tokens_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  nn::Embedding* embedding() override { return tokens_.embedding(); }
  std::vector<Shelved> makes() const override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  const std::shared_ptr<nn::Parameter>& weight() const { return tokens_.weight(); }
  double scale() const override { return tokens_.scale(); }

 private:
  int64_t num_layers_;
  int64_t size_;
  std::optional<int64_t> padding_id_;
  LlamaEmbedding tokens_;
  // Where the layers have vectors.
  std::unique_ptr<nn::Parameter> table_;
  std::optional<nn::Linear> projection_;
  std::optional<nn::RmsNorm> norm_;
};

class Gemma4DecoderLayer final : public Block, public HasFusedLinears {
 public:
  // `rope`: of the layer's kind, shared, must outlive it.
  Gemma4DecoderLayer(const Gemma4Config& config, int64_t index, at::ScalarType storage,
                     nn::Rope& rope);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return layer_class_; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override { return {}; }
  std::vector<nn::ExpertParameter*> expert_parameters() override;
  std::vector<Shelved> makes() const override { return attention_.makes(); }
  std::vector<int> reads() const override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // What the layer's vector adds.
  struct LayerVector {
    LayerVector(const Gemma4Config& config, const std::string& path, at::ScalarType storage);

    nn::Linear gate, projection;
    nn::RmsNorm norm;
  };
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor add_vector(const at::Tensor& x, const nn::ForwardContext& context);

  std::string layer_class_, path_;
  int vector_slot_;
  Gemma4Attention attention_;
  Mlp mlp_;
  nn::RmsNorm input_norm_, attention_norm_, mlp_input_norm_, mlp_norm_;
  nn::Parameter scalar_;  // a buffer of the reference, of one number
  std::optional<LayerVector> vector_;
  std::optional<Gemma4Mixture> mixture_;        // beside the MLP
  std::optional<nn::RmsNorm> mlp_branch_norm_;  // of what the MLP gives, with mixture_
};

}  // namespace strata::models
