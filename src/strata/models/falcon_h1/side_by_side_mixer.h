// Attention and Mamba-2 side by side, which read one norm and whose results are added. Owns: both,
// and the factors of what they read. Never: the factors after them, which are theirs.
#pragma once

#include <memory>
#include <vector>

#include "strata/models/falcon_h1/config.h"
#include "strata/models/llama/attention_mixer.h"
#include "strata/models/mamba/mixer.h"

namespace strata::models {

class SideBySideMixer final : public TokenMixer {
 public:
  // `rope` and `lanes` are shared by the layers of a model.
  SideBySideMixer(const FalconH1Config& config, int64_t index, at::ScalarType storage,
                  nn::Rope& rope, std::shared_ptr<nn::LaneTable> lanes);

  std::vector<nn::Linear*> linears() override;
  std::vector<nn::Linear*> untargeted_linears() override { return mamba_.untargeted_linears(); }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                 const nn::ForwardContext& context) override;
  bool init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override {
    return mamba_.init_weight(parameter, std::move(full), std::move(generator));
  }

 private:
  double ssm_in_, attention_in_;
  MambaMixer mamba_;
  AttentionMixer attention_;
};

}  // namespace strata::models
