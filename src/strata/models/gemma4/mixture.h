// The experts of Gemma 4 (26B-A4B), beside the MLP of the layer: a router with a norm of its own,
// experts that are two parameters, a norm before and one after them. Owns: these and their names.
// Never: the MLP and the sum (blocks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/models/gemma4/config.h"
#include "strata/nn/experts/fused_experts.h"
#include "strata/nn/linear.h"
#include "strata/nn/norm.h"

namespace strata::models {

class Gemma4Mixture {
 public:
  // `path`: of the layer.
  Gemma4Mixture(const Gemma4Config& config, const std::string& path, at::ScalarType storage);

  std::vector<nn::Linear*> linears() { return {&router_}; }
  std::vector<nn::ExpertParameter*> expert_parameters() {
    return {&gate_up_matrices_, &down_matrices_};
  }
  // Of router and experts, of the norms: between the two stands another norm of the layer.
  void append_parameters(std::vector<nn::Parameter*>& list);
  void append_norms(std::vector<nn::Parameter*>& list);
  // What the experts make of x [T, hidden], which is no norm's output.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context);

 private:
  nn::Routing route(const at::Tensor& x, const nn::ForwardContext& context);

  nn::RouterOptions options_;
  nn::RmsNorm router_norm_;
  nn::Parameter expert_scales_;  // of the weights that the router gives
  nn::Linear router_;
  nn::Parameter gate_up_, down_;
  nn::ExpertParameter gate_up_matrices_, down_matrices_;  // point to them, as the next
  nn::FusedExperts experts_;
  nn::RmsNorm norm_behind_, norm_before_;
};

}  // namespace strata::models
