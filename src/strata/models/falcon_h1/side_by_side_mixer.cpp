#include "strata/models/falcon_h1/side_by_side_mixer.h"

#include <utility>

#include <ATen/ATen.h>

namespace strata::models {
namespace {

LlamaConfig attention_of(const FalconH1Config& c) {
  LlamaConfig llama = c.llama;
  llama.residual_multiplier = c.attention_out;
  return llama;
}

nn::Remakable scaled(const nn::Remakable& x, double factor) {
  if (factor == 1.0) return x;
  if (!x.remake) return x.value * factor;
  return {x.value * factor, [remake = x.remake, factor] { return remake() * factor; }};
}

}  // namespace

SideBySideMixer::SideBySideMixer(const FalconH1Config& c, int64_t index, at::ScalarType storage,
                                 nn::Rope& rope, std::shared_ptr<nn::LaneTable> lanes)
    : ssm_in_(c.ssm_in),
      attention_in_(c.attention_in),
      mamba_(c.mamba, index, storage, std::move(lanes)),
      attention_(attention_of(c), AttentionNames{}, index, storage, rope) {}

std::vector<nn::Linear*> SideBySideMixer::linears() {
  std::vector<nn::Linear*> list = mamba_.linears();
  for (nn::Linear* layer : attention_.linears()) list.push_back(layer);
  return list;
}

void SideBySideMixer::append_parameters(std::vector<nn::Parameter*>& list) {
  mamba_.append_parameters(list);
  attention_.append_parameters(list);
}

at::Tensor SideBySideMixer::add(const nn::Remakable& normed, const at::Tensor& residual,
                                const nn::ForwardContext& context) {
  const at::Tensor mixed = mamba_.add(scaled(normed, ssm_in_), residual, context);
  return attention_.add(scaled(normed, attention_in_), mixed, context);
}

}  // namespace strata::models
