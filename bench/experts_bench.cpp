// One mixture of experts, router included, forward and backward: the part of bench/experts.py that
// is ours. Usage: experts_bench TOKENS HIDDEN INTERMEDIATE EXPERTS PER_TOKEN float32|bfloat16
// trained|frozen|lora; each line of its input asks for one round, answered by its milliseconds of
// wall and of processor time.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "strata/nn/experts/experts.h"

namespace {

namespace nn = strata::nn;

struct Options {
  int64_t tokens, hidden, intermediate, experts, per_token;
  at::ScalarType type;
  std::string mode;
};

class Mixture {
 public:
  explicit Mixture(const Options& o) : options_(o) {
    layers_.reserve(static_cast<size_t>(3 * o.experts + 1));
    router_ = add(o.hidden, o.experts, /*has_branch=*/false);
    const bool has_branch = o.mode == "lora";
    for (int64_t e = 0; e < o.experts; ++e) {
      experts_.push_back({.gate = add(o.hidden, o.intermediate, has_branch),
                          .up = add(o.hidden, o.intermediate, has_branch),
                          .down = add(o.intermediate, o.hidden, has_branch)});
    }
  }

  void run(const at::Tensor& x) {
    for (auto& [parameter, gradient] : trained_) {
      parameter->attach_grad(gradient, /*overwrite=*/true);
    }
    const nn::ForwardContext context{.training = true};
    const at::Tensor logits = router_->forward(x, context);
    const at::Tensor y = nn::add_experts_last(
        {.each = experts_}, nn::Remakable(x), at::zeros_like(x),
        nn::route(logits, {.experts_per_token = options_.per_token, .normalizes = true}, context),
        context);
    torch::autograd::backward({y}, {at::ones_like(y)});
  }

 private:
  void give_memory(nn::Parameter& parameter, bool trains) {
    parameter.attach_value((at::randn(parameter.shape()) * 0.02).to(options_.type));
    parameter.set_requires_grad(trains);
    if (trains) trained_.emplace_back(&parameter, at::empty_like(parameter.value()));
  }

  nn::Linear* add(int64_t in, int64_t out, bool has_branch) {
    constexpr int64_t kRank = 8;
    nn::Linear& layer = layers_.emplace_back(
        "layer",
        nn::Linear::Options{.in_features = in, .out_features = out, .storage = options_.type});
    give_memory(layer.weight(), options_.mode == "trained");
    if (has_branch) {
      layer.attach_low_rank(std::unique_ptr<nn::LowRankBranch>(new nn::LowRankBranch{
          .a = {"a", {kRank, in}, options_.type}, .b = {"b", {out, kRank}, options_.type}}));
      give_memory(layer.low_rank()->a, /*trains=*/true);
      give_memory(layer.low_rank()->b, /*trains=*/true);
    }
    return &layer;
  }

  Options options_;
  std::vector<nn::Linear> layers_;
  std::vector<std::pair<nn::Parameter*, at::Tensor>> trained_;
  std::vector<nn::Expert> experts_;
  nn::Linear* router_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  const auto number = [&](int i) { return std::stoll(argv[i]); };
  const Options options{
      .tokens = number(1),
      .hidden = number(2),
      .intermediate = number(3),
      .experts = number(4),
      .per_token = number(5),
      .type = std::string(argv[6]) == "bfloat16" ? at::kBFloat16 : at::kFloat,
      .mode = argv[7],
  };
  at::manual_seed(0);
  Mixture mixture(options);
  for (std::string line; std::getline(std::cin, line);) {
    const at::Tensor x =
        at::randn({options.tokens, options.hidden}).to(options.type).requires_grad_(true);
    const std::clock_t cpu = std::clock();
    const auto begin = std::chrono::steady_clock::now();
    mixture.run(x);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    const double busy = 1e3 * static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
    std::printf("%.3f %.3f\n", taken.count(), busy);
    std::fflush(stdout);
  }
}
