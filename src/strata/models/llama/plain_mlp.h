// An MLP without a gate in the place of Llama's: up, an activation, down. Owns: its layers and what
// trains in the activation. Never: the rest of the layer (llama/blocks.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/feed_forward.h"
#include "strata/models/llama/model.h"
#include "strata/nn/activation.h"
#include "strata/nn/xielu.h"

namespace strata::models {

struct PlainMlpConfig {
  LlamaConfig llama;
  // Nothing: xIELU, which has numbers that train.
  std::optional<nn::Activation> activation = nn::Activation::kSquaredRelu;
  std::string up = "up_proj", down = "down_proj";  // the layers' names
};

PlainMlpConfig parse_arcee_config(const Json& config);
PlainMlpConfig parse_apertus_config(const Json& config);

class PlainMlp final : public FeedForward {
 public:
  // `path`: of the module, such as "model.layers.0.mlp".
  PlainMlp(const PlainMlpConfig& config, const std::string& path, at::ScalarType storage);

  std::vector<nn::Linear*> linears() override { return {&up_proj_, &down_proj_}; }
  std::vector<std::vector<nn::Linear*>> fused_linears() override { return {}; }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;

 private:
  nn::Remakable activate(const at::Tensor& up);

  nn::Linear up_proj_, down_proj_;
  std::optional<nn::Activation> activation_;
  std::optional<nn::Xielu> xielu_;
};

MakeDecoderLayer make_plain_mlp_layers(const PlainMlpConfig& config);

}  // namespace strata::models
