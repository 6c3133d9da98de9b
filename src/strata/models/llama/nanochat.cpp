#include "strata/models/llama/nanochat.h"

#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/extended_layer.h"
#include "strata/models/plain_activation.h"

namespace strata::models {
namespace {

// null: logits have no cap.
double parse_logit_cap(const ConfigReader& config) {
  const char* key = "final_logit_softcapping";
  if (config.json().contains(key) && !config.has(key)) return 0;
  return config.positive_number(key, 15.0);
}

}  // namespace

PlainMlpConfig parse_nanochat_config(const Json& json) {
  const ConfigReader config(json);
  PlainMlpConfig result;
  result.up = "fc1";
  result.down = "fc2";
  LlamaConfig& c = result.llama;
  c.layer_class = "NanoChatDecoderLayer";
  c.architecture = "NanoChatForCausalLM";
  c.lora_targets = c.ia3_targets = c.ia3_feedforward = {};
  c.vocab_size = 50304;
  c.hidden_size = 768;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 12;
  c.num_attention_heads = 6;
  c.unit_norms = true;
  // There is no gate; what the activation is, is read below.
  c.gate = ops::GateKind::kGeluTanh;
  parse_common(config, c);
  parse_default_padding_id(config, c, /*fallback=*/1);
  result.activation = parse_activation(config, "hidden_act", "relu2");
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.logit_softcap = parse_logit_cap(config);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c);
  return result;
}

MakeDecoderLayer make_nanochat_layers(const PlainMlpConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    const auto num_branches = 2.0 * static_cast<double>(llama.num_hidden_layers);
    const ExtendedConfig layer{.llama = llama,
                               .turned_unit_norms = true,
                               .turns_back = true,
                               .output_range = llama.initializer_range / std::sqrt(num_branches)};
    auto mlp =
        std::make_unique<PlainMlp>(config, fmt::format("model.layers.{}.mlp", index), storage);
    return std::make_unique<ExtendedDecoderLayer>(layer, index, storage, rope, std::move(mlp));
  };
}

}  // namespace strata::models
