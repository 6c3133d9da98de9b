// The head of decoders with LayerNorm: norm, output layer and loss, or a layer for documents in
// their place. Owns: those layers and their order. Never: the tie (tied_decoder.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/model.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

struct DecoderHeadOptions {
  std::string norm_path;        // "transformer.ln_f"; empty: no norm
  std::string projection_path;  // of a layer between norm and output layer; empty: none
  int64_t hidden_size;
  int64_t output_size;  // what the output layer reads: hidden_size without a projection
  int64_t vocab_size;
  double norm_eps;
  nn::LayerNormAffine norm_affine = nn::LayerNormAffine::kWeightAndBias;
  double logit_scale = 1;  // by which logits are multiplied
  bool has_bias = false;   // of the output layer; not of one that is tied
  int64_t num_labels;      // that "score" gives in place of the output layer; 0: there is none
};

class DecoderHead final : public Block {
 public:
  // `tied`: the embedding's weight, or null for a weight of its own.
  DecoderHead(const DecoderHeadOptions& options, at::ScalarType storage,
              std::shared_ptr<nn::Parameter> tied);

  BlockKind kind() const override { return BlockKind::kHead; }
  std::string class_name() const override { return "Linear"; }
  std::string path() const override { return output_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;  // the output layer is the last
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  // fp32 [rows, vocab].
  at::Tensor logits(const at::Tensor& x);
  nn::Linear& output_layer() { return output_; }

 private:
  // What the output layer reads.
  at::Tensor prepared(const at::Tensor& x, const nn::ForwardContext& context);

  std::optional<nn::LayerNorm> norm_;
  std::optional<nn::Linear> projection_;
  nn::Linear output_;
  double logit_scale_;
};

}  // namespace strata::models
