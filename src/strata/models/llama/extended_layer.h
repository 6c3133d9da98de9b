// The decoder layer of Seed-OSS, Hunyuan and Ministral 3: Llama's, with dropout of what attention
// and MLP add, norms of heads that have turned, or queries that grow with their position. Owns: its
// layers and the order of operations. Never: embedding, head and chain, which are Llama's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/blocks.h"
#include "strata/models/llama/model.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/attention/query_scale.h"

namespace strata::models {

// Beside what Llama's layer reads of its settings, but for its multipliers and kinds of norms.
struct ExtendedConfig {
  LlamaConfig llama;
  double residual_dropout = 0;      // of what attention and MLP add, while training
  bool norms_turned_heads = false;  // of q and k, behind the rotation
  std::optional<nn::QueryScale> query_scale = {};
};

ExtendedConfig parse_seed_oss_config(const Json& config);
ExtendedConfig parse_hunyuan_v1_dense_config(const Json& config);
ExtendedConfig parse_ministral3_config(const Json& config);

class ExtendedDecoderLayer final : public DecoderLayer {
 public:
  // `rope` is shared by all layers and must outlive them.
  ExtendedDecoderLayer(const ExtendedConfig& config, int64_t index, at::ScalarType storage,
                       nn::Rope& rope);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.llama.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // x + attention(norm(x)); x + mlp(norm(x)).
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);
  nn::AttentionOptions attention_options() const;
  // What comes before the products of q and k.
  void prepare(at::Tensor& q, at::Tensor& k, const nn::ForwardContext& context);

  ExtendedConfig config_;
  int64_t index_;
  std::string path_;
  nn::Rope& rope_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::optional<nn::RmsNorm> q_norm_, k_norm_;
  Mlp mlp_;
  nn::RmsNorm input_layernorm_, post_attention_layernorm_;
};

MakeDecoderLayer make_extended_layers(const ExtendedConfig& config);

}  // namespace strata::models
