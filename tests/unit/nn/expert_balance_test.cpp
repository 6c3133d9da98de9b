// Oracle: ATen's autograd in double precision over the definition, with the shares as constants.
#include "strata/nn/experts/expert_balance.h"

#include <gtest/gtest.h>

#include "../comm/on_ranks.h"
#include "gathered.h"
#include "strata/base/error.h"
#include "strata/nn/attention/sequence_parallel.h"
#include "strata/nn/experts/router.h"

namespace strata::nn {
namespace {

// Layers of 7 tokens and 5 experts, of which tokens never choose the last.
std::vector<at::Tensor> make_logits(int layers) {
  at::manual_seed(4);
  std::vector<at::Tensor> logits;
  for (int i = 0; i < layers; ++i) {
    logits.push_back(at::randn({7, 5}));
    logits.back().select(1, 4).sub_(9);
    logits.back().requires_grad_(true);
  }
  return logits;
}

at::Tensor share(const std::vector<at::Tensor>& logits, int64_t per_token) {
  at::Tensor counts = at::zeros({5}, at::kDouble);
  for (const at::Tensor& layer : logits) {
    counts += at::one_hot(std::get<1>(at::topk(layer, per_token, 1)), 5).sum({0, 1});
  }
  return counts / static_cast<double>(7 * logits.size());
}

class Balances : public testing::TestWithParam<std::tuple<int, bool, int>> {};

TEST_P(Balances, LossAndGradientAreThoseOfAllLayers) {
  const auto [layers, normalizes, per_token] = GetParam();
  const RouterOptions options{.experts_per_token = per_token, .normalizes = normalizes};
  const std::vector<at::Tensor> logits = make_logits(layers);
  std::vector<at::Tensor> leaves;
  at::Tensor mean = at::zeros({5}, at::kDouble), expected = at::zeros({}, at::kDouble);
  for (const at::Tensor& layer : logits) {
    leaves.push_back(reference_leaf(layer));
    const at::Tensor probabilities = at::softmax(leaves.back(), 1);
    mean = mean + probabilities.mean(0) / layers;
    at::Tensor best = std::get<0>(at::topk(probabilities, per_token, 1));
    if (normalizes) best = best / best.sum(1, true);
    expected = expected + best.square().sum();
  }
  const at::Tensor loss = 5 * (share(logits, per_token) * mean).sum();
  torch::autograd::backward({expected + 0.7 * loss}, {at::ones({}, at::kDouble)});

  ExpertBalance balance(/*scale=*/0.7);
  ForwardContext context{.balance = &balance};
  std::vector<Routing> routings;
  for (const at::Tensor& layer : logits) routings.push_back(route(layer, options, context));
  context.pass.wants_output = false;  // every second one runs again, from the last on
  for (size_t i = logits.size(); i-- > 0;) {
    if (i % 2 == 0) routings[i] = route(logits[i], options, context);
    const at::Tensor weights = routings[i].weights;
    torch::autograd::backward({weights}, {2 * weights.detach()});
    EXPECT_LT(relative_error(logits[i].grad(), leaves[i].grad()), 1e-5) << i;
  }
  EXPECT_NEAR(balance.loss(), loss.item<double>(), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Mixtures, Balances,
                         testing::Combine(testing::Values(1, 4), testing::Bool(),
                                          testing::Values(1, 2, 5)));

TEST(ExpertBalance, ThatIsMeasuredAloneChangesNoGradient) {
  const RouterOptions options{.experts_per_token = 2, .normalizes = true};
  ExpertBalance balance(/*scale=*/0);
  std::vector<at::Tensor> gradients;
  for (ExpertBalance* of_context : {static_cast<ExpertBalance*>(nullptr), &balance}) {
    const at::Tensor logits = make_logits(1)[0];
    const Routing routing = route(logits, options, {.balance = of_context});
    torch::autograd::backward({routing.weights}, {at::arange(14).view({7, 2}).to(at::kFloat)});
    gradients.push_back(logits.grad());
  }
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
  EXPECT_GT(balance.loss(), 1);
}

// Three ranks share 7 tokens; the last has one of them and two that fill its part up.
TEST(ExpertBalance, OfRanksThatShareRowsIsThatOfAllTokens) {
  constexpr int kRanks = 3;
  constexpr int64_t kCount = 3;
  const RouterOptions options{.experts_per_token = 2, .normalizes = true};
  const std::vector<at::Tensor> logits = make_logits(2);
  const at::Tensor slopes = at::sin(at::arange(14, at::kFloat)).view({7, 2});
  ExpertBalance balance(/*scale=*/0.7);
  std::vector<at::Tensor> weights;
  for (const at::Tensor& layer : logits) {
    weights.push_back(route(layer, options, {.balance = &balance}).weights);
  }
  for (const at::Tensor& of_layer : weights) torch::autograd::backward({of_layer}, {slopes});

  comm::on_ranks(kRanks, [&](comm::Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    Batch whole;
    whole.ids = at::zeros({7}, at::kLong);
    whole.targets = whole.positions = whole.token_keys = whole.ids;
    whole.offsets = {0, 7};
    const Batch part = part_of(whole, *group);
    ExpertBalance own(/*scale=*/0.7, group.get());
    const ForwardContext context{.batch = &part, .balance = &own};
    const int64_t begin = group->rank() * kCount, real = std::min<int64_t>(kCount, 7 - begin);
    const auto cut = [&](const at::Tensor& x) {  // what fills it up is unlike all others
      return at::constant_pad_nd(x.detach().narrow(0, begin, real), {0, 0, 0, kCount - real}, 3);
    };
    std::vector<at::Tensor> leaves, of_layers;
    for (const at::Tensor& layer : logits) {
      leaves.push_back(cut(layer).requires_grad_(true));
      of_layers.push_back(route(leaves.back(), options, context).weights);
    }
    // Those that nobody trains on have no gradient from elsewhere.
    const at::Tensor own_slopes =
        at::constant_pad_nd(slopes.narrow(0, begin, real), {0, 0, 0, kCount - real});
    for (const at::Tensor& weights : of_layers) {
      torch::autograd::backward({weights}, {own_slopes});
    }
    EXPECT_NEAR(own.loss(), balance.loss(), 1e-6);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const at::Tensor found = leaves[i].grad();
      const at::Tensor expected = logits[i].grad().narrow(0, begin, real);
      EXPECT_TRUE(at::allclose(found.narrow(0, 0, real), expected, 1e-5, 1e-7)) << i;
      EXPECT_EQ(found.narrow(0, real, kCount - real).abs().sum().item<float>(), 0);
    }
    group->barrier();
  });
}

TEST(ExpertBalance, OfNoLayersIsZero) { EXPECT_EQ(ExpertBalance(1).loss(), 0); }

TEST(ExpertBalance, RefusesALayerThatRunsTwice) {
  const RouterOptions options{.experts_per_token = 2, .normalizes = true};
  ExpertBalance balance(/*scale=*/1);
  const at::Tensor logits = make_logits(1)[0];
  route(logits, options, {.balance = &balance});
  balance.gradient();
  EXPECT_THROW(route(logits, options, {.balance = &balance}), InternalError);
}

}  // namespace
}  // namespace strata::nn
