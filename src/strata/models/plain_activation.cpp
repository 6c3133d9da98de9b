#include "strata/models/plain_activation.h"

#include "strata/base/error.h"

namespace strata::models {

nn::Activation parse_activation(const ConfigReader& config, const std::string& key,
                                const std::string& fallback) {
  const std::string name = config.text(key, fallback);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") {
    return nn::Activation::kGeluTanh;
  }
  if (name == "gelu") return nn::Activation::kGelu;
  if (name == "relu") return nn::Activation::kRelu;
  if (name == "silu" || name == "swish") return nn::Activation::kSilu;
  if (name == "relu2") return nn::Activation::kSquaredRelu;
  throw ConfigError(
      "config.json: found {} \"{}\", expected gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu, "
      "silu, swish or relu2; use a checkpoint with one of these",
      key, name);
}

}  // namespace strata::models
