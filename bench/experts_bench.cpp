// One mixture of experts, router included, forward and backward with gradients of all weights: the
// part of bench/experts.py that is ours. Usage: experts_bench TOKENS HIDDEN INTERMEDIATE EXPERTS
// PER_TOKEN ROUNDS float32|bfloat16; prints the milliseconds of each round.
#include <chrono>
#include <cstdio>
#include <string>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "strata/nn/experts.h"

namespace {

namespace nn = strata::nn;

struct Sizes {
  int64_t tokens, hidden, intermediate, experts, per_token;
};

class Mixture {
 public:
  Mixture(const Sizes& s, at::ScalarType type) : sizes_(s), type_(type) {
    layers_.reserve(static_cast<size_t>(3 * s.experts + 1));
    router_ = add(s.hidden, s.experts);
    for (int64_t e = 0; e < s.experts; ++e) {
      experts_.push_back({.gate = add(s.hidden, s.intermediate),
                          .up = add(s.hidden, s.intermediate),
                          .down = add(s.intermediate, s.hidden)});
    }
  }

  void run(const at::Tensor& x) {
    for (nn::Linear& layer : layers_) {
      layer.weight().attach_grad(gradients_.at(&layer - layers_.data()), /*overwrite=*/true);
    }
    const nn::ForwardContext context{.training = true};
    const at::Tensor logits = router_->forward(x, context);
    const at::Tensor y = nn::add_experts_last(
        experts_, nn::Remakable(x), at::zeros_like(x),
        nn::route(logits, {.experts_per_token = sizes_.per_token, .normalizes = true}), context);
    torch::autograd::backward({y}, {at::ones_like(y)});
  }

 private:
  nn::Linear* add(int64_t in, int64_t out) {
    nn::Linear& layer = layers_.emplace_back(
        "layer", nn::Linear::Options{.in_features = in, .out_features = out, .storage = type_});
    layer.weight().attach_value((at::randn({out, in}) * 0.02).to(type_));
    gradients_.push_back(at::empty({out, in}, at::dtype(type_)));
    return &layer;
  }

  Sizes sizes_;
  at::ScalarType type_;
  std::vector<nn::Linear> layers_;
  std::vector<at::Tensor> gradients_;
  std::vector<nn::Expert> experts_;
  nn::Linear* router_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  const auto number = [&](int i) { return std::stoll(argv[i]); };
  const at::ScalarType type = std::string(argv[7]) == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const Sizes sizes{number(1), number(2), number(3), number(4), number(5)};
  at::manual_seed(0);
  Mixture mixture(sizes, type);
  for (int64_t round = 0; round < number(6); ++round) {
    const at::Tensor x = at::randn({sizes.tokens, sizes.hidden}).to(type).requires_grad_(true);
    const auto begin = std::chrono::steady_clock::now();
    mixture.run(x);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    std::printf("%.2f\n", taken.count());
  }
}
