// Oracle: libtorch's layer_norm head by head in double, differentiated by autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "gathered.h"
#include "strata/nn/head_norm.h"

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 7, kHeads = 3, kChannels = 10;
constexpr double kEps = 1e-3;

void equals_norms_of_single_heads(HeadNormWeights kind, at::ScalarType type, double limit) {
  HeadNorm norm("q_norm",
                {.weights = kind, .num_heads = kHeads, .head_dim = kChannels, .eps = kEps}, type);
  std::vector<Parameter*> parameters;
  norm.append_parameters(parameters);
  std::vector<at::Tensor> leaves;
  for (Parameter* parameter : parameters) {
    give_memory(*parameter, type);
    leaves.push_back(reference_leaf(parameter->value()));
  }
  const at::Tensor x = at::randn({kTokens, kHeads * kChannels}).to(type).requires_grad_(true);
  const at::Tensor dy = at::randn({kTokens, kHeads * kChannels}).to(type);
  const at::Tensor y = norm.forward(x);
  torch::autograd::backward({y}, {dy});

  const at::Tensor reference_x = reference_leaf(x);
  const at::Tensor heads = reference_x.view({kTokens, kHeads, kChannels});
  std::vector<at::Tensor> outputs;
  for (int64_t h = 0; h < kHeads; ++h) {
    const bool is_shared = kind == HeadNormWeights::kShared;
    const at::Tensor weight = is_shared                           ? leaves[0]
                              : kind == HeadNormWeights::kOfHeads ? leaves[0].select(0, h)
                                                                  : leaves[static_cast<size_t>(h)];
    outputs.push_back(at::layer_norm(heads.select(1, h), {kChannels}, weight,
                                     is_shared ? leaves[1] : at::Tensor(), kEps));
  }
  const at::Tensor expected = at::stack(outputs, 1).view(x.sizes());
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});

  EXPECT_LT(relative_error(y, expected), limit);
  EXPECT_LT(relative_error(x.grad(), reference_x.grad()), limit);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LT(relative_error(gradient_of(*parameters[i]), leaves[i].grad()), limit)
        << parameters[i]->name();
  }
}

TEST(HeadNorm, EqualsNormsOfSingleHeads) {
  for (const HeadNormWeights kind :
       {HeadNormWeights::kShared, HeadNormWeights::kOfHeads, HeadNormWeights::kOfEachHead}) {
    equals_norms_of_single_heads(kind, at::kFloat, 1e-6);
    equals_norms_of_single_heads(kind, at::kBFloat16, 1e-2);
  }
}

TEST(HeadNorm, NamesAreTheReferences) {
  const auto names_of = [](HeadNormWeights kind) {
    HeadNorm norm("q", {.weights = kind, .num_heads = 2, .head_dim = 4, .eps = kEps}, at::kFloat);
    std::vector<Parameter*> parameters;
    norm.append_parameters(parameters);
    std::vector<std::string> names;
    for (const Parameter* parameter : parameters) names.push_back(parameter->name());
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of(HeadNormWeights::kShared), (Names{"q.weight", "q.bias"}));
  EXPECT_EQ(names_of(HeadNormWeights::kOfHeads), (Names{"q.weight"}));
  EXPECT_EQ(names_of(HeadNormWeights::kOfEachHead),
            (Names{"q.norms.0.weight", "q.norms.1.weight"}));
}

TEST(HeadNorm, FrozenWeightsGetNoGradient) {
  HeadNorm norm("q_norm", {HeadNormWeights::kOfHeads, kHeads, kChannels, kEps}, at::kFloat);
  std::vector<Parameter*> parameters;
  norm.append_parameters(parameters);
  parameters[0]->attach_value(at::ones(parameters[0]->shape()));
  parameters[0]->set_requires_grad(false);
  const at::Tensor x = at::randn({kTokens, kHeads * kChannels}).requires_grad_(true);
  torch::autograd::backward({norm.forward(x)}, {at::ones_like(x)});
  EXPECT_LT(x.grad().abs().max().item<double>(), 1e-4);  // a norm does not see a common shift
}

}  // namespace
}  // namespace strata::nn
