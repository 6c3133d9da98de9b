// The decoder layer of Seed-OSS, Hunyuan, Ministral 3, nanochat, OLMoE, Llama 4 and Granite's
// mixtures: Llama's, with dropout of what attention and MLP add, norms of heads that have turned,
// queries that grow with their position, chunks, limits of q, k and v, or another order of
// parameters. Owns: its layers and the order of operations. Never: embedding, head and chain, which
// are Llama's; what stands in the place of the MLP.
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

// Beside what Llama's layer reads of its settings, but for kinds and places of norms, sinks and the
// cap of scores. A residual multiplier is that of attention alone.
struct ExtendedConfig {
  LlamaConfig llama;
  double residual_dropout = 0;      // of what attention and MLP add, while training
  bool norms_turned_heads = false;  // of q and k, after the rotation
  bool turned_unit_norms = false;   // the same without weights
  bool turns_back = false;          // the rotation's other direction; beside such norms alone
  std::optional<nn::QueryScale> query_scale = {};
  int64_t chunk = 0;              // see nn::AttentionOptions
  double qkv_limit = 0;           // of the sizes of q, k and v after their norms; 0: none
  bool norms_come_first = false;  // before the MLP, in the reference's order of parameters
  std::optional<double> output_range = {};  // of initial values of o_proj, by default Llama's
};

ExtendedConfig parse_seed_oss_config(const Json& config);
ExtendedConfig parse_hunyuan_v1_dense_config(const Json& config);
ExtendedConfig parse_ministral3_config(const Json& config);

class ExtendedDecoderLayer final : public DecoderLayer, public HasFusedLinears {
 public:
  // `rope` is shared by all layers and must outlive them. `feed_forward`: in place of the MLP.
  ExtendedDecoderLayer(const ExtendedConfig& config, int64_t index, at::ScalarType storage,
                       nn::Rope& rope, std::unique_ptr<FeedForward> feed_forward = nullptr);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.llama.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override;
  std::vector<nn::ExpertParameter*> expert_parameters() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;
  bool init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;

 private:
  // x + attention(norm(x)); x + mlp(norm(x)).
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);
  nn::AttentionOptions attention_options() const;
  // Before something else than attention looks at q and k.
  bool turns_first() const { return config_.norms_turned_heads || config_.turned_unit_norms; }
  // What attention or MLP reads, and what its result is added to.
  nn::RmsNorm::Branches branches_of(std::optional<nn::RmsNorm>& norm, const at::Tensor& x) const;
  // What comes before the products of q [0] and k [1], and of v [2].
  void prepare(std::vector<at::Tensor>& qkv, const nn::ForwardContext& context);

  ExtendedConfig config_;
  int64_t index_;
  std::string path_;
  nn::Rope& rope_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::optional<nn::RmsNorm> q_norm_, k_norm_;
  std::optional<Mlp> mlp_;  // without feed_forward_
  std::unique_ptr<FeedForward> feed_forward_;
  std::optional<nn::RmsNorm> input_layernorm_, post_attention_layernorm_;  // without unit_norms
};

MakeDecoderLayer make_extended_layers(const ExtendedConfig& config);

}  // namespace strata::models
