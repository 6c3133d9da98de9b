#include "strata/models/lfm2/short_conv.h"

#include "strata/nn/attention/kv_cache.h"
#include "strata/nn/linear_attention/causal_conv.h"

namespace strata::models {

ShortConv::ShortConv(const Lfm2Config& config, int64_t index, at::ScalarType storage)
    : ShortConv(config, index, "model.layers." + std::to_string(index) + ".conv.", storage) {}

ShortConv::ShortConv(const Lfm2Config& c, int64_t index, const std::string& path,
                     at::ScalarType storage)
    : index_(index),
      weight_(path + "conv.weight", {c.llama.hidden_size, 1, c.conv_size}, storage),
      in_proj_(path + "in_proj", {.in_features = c.llama.hidden_size,
                                  .out_features = 3 * c.llama.hidden_size,
                                  .bias = c.conv_bias,
                                  .storage = storage}),
      out_proj_(path + "out_proj", {.in_features = c.llama.hidden_size,
                                    .out_features = c.llama.hidden_size,
                                    .bias = c.conv_bias,
                                    .storage = storage}) {
  if (c.conv_bias) {
    bias_.emplace(path + "conv.bias", std::vector<int64_t>{c.llama.hidden_size}, storage);
  }
}

void ShortConv::append_parameters(std::vector<nn::Parameter*>& list) {
  list.push_back(&weight_);
  if (bias_) list.push_back(&*bias_);
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
}

at::Tensor ShortConv::add(const nn::Remakable& normed, const at::Tensor& residual,
                          const nn::ForwardContext& context) {
  const at::Tensor gates = nn::linear_shared_input({&in_proj_}, normed, context)[0];
  if (nn::KvCache* cache = context.generation.cache) {
    at::Tensor& before = cache->layers.at(static_cast<size_t>(index_)).last_inputs;
    const at::Tensor mixed = nn::gated_causal_conv_after(before, gates, weight_, bias());
    return out_proj_.forward_add_once(mixed, residual, context);
  }
  const at::Tensor mixed = nn::gated_causal_conv(gates, weight_, *context.batch, bias());
  return out_proj_.forward_add_once(mixed, residual, context);
}

}  // namespace strata::models
