// Oracle: ATen's cross_entropy_loss and autograd in double precision over all logits at once.
#include "strata/nn/chunked_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gathered.h"
#include "strata/base/error.h"
#include "strata/nn/preference_loss.h"
#include "strata/nn/rated_loss.h"

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 150, kHidden = 8;

class LossTest : public ::testing::Test {
 protected:
  LossTest() {
    at::manual_seed(0);
    batch_.token_keys = at::arange(kTokens);
    context_ = {.batch = &batch_, .head = {.loss_scale = 0.25f, .sums = &sums_}};
  }

  // A vocabulary so large that the rows fall into several chunks.
  static std::unique_ptr<Linear> make(int64_t vocab) {
    auto layer = std::make_unique<Linear>(
        "lm_head",
        Linear::Options{.in_features = kHidden, .out_features = vocab, .storage = at::kFloat});
    give_memory(layer->weight());
    return layer;
  }

  static std::unique_ptr<Linear> make_with_branch(int64_t vocab) {
    auto layer = make(vocab);
    layer->weight().set_requires_grad(false);
    layer->attach_low_rank(std::unique_ptr<LowRankBranch>(new LowRankBranch{
        .a = {"a", {3, kHidden}, at::kFloat}, .b = {"b", {vocab, 3}, at::kFloat}, .scaling = 0.5}));
    give_memory(layer->low_rank()->a);
    give_memory(layer->low_rank()->b);
    return layer;
  }

  // Parameters and what they are in the reference's graph.
  using Leaves = std::vector<std::pair<Parameter*, at::Tensor>>;

  static at::Tensor reference_logits(Linear& layer, const at::Tensor& h64, Leaves& leaves,
                                     double softcap = 0) {
    const at::Tensor logits = uncapped_logits(layer, h64, leaves);
    return softcap > 0 ? softcap * at::tanh(logits / softcap) : logits;
  }

  static at::Tensor uncapped_logits(Linear& layer, const at::Tensor& h64, Leaves& leaves) {
    const at::Tensor w64 = reference_leaf(layer.weight().value());
    leaves.emplace_back(&layer.weight(), w64);
    const at::Tensor logits = at::mm(h64, w64.t());
    LowRankBranch* branch = layer.low_rank();
    if (branch == nullptr) return logits;
    const at::Tensor a = reference_leaf(branch->a.value()), b = reference_leaf(branch->b.value());
    leaves.insert(leaves.end(), {{&branch->a, a}, {&branch->b, b}});
    return logits + at::mm(at::mm(h64, a.t()), b.t()) * branch->scaling;
  }

  // Of what the head scales by 0.25 and of the reference, in double.
  static void expect_gradients(const at::Tensor& loss, const at::Tensor& expected,
                               const at::Tensor& h, const at::Tensor& h64, const Leaves& leaves) {
    torch::autograd::backward({loss}, {at::ones({})});
    torch::autograd::backward({expected * 0.25}, {at::ones({}, at::kDouble)});
    EXPECT_LT(relative_error(h.grad(), h64.grad()), 1e-5);
    for (const auto& [parameter, leaf] : leaves) {
      if (!parameter->requires_grad()) continue;
      EXPECT_LT(relative_error(gradient_of(*parameter), leaf.grad()), 1e-5) << parameter->name();
    }
  }

  void check(Linear& layer, const at::Tensor& targets, double softcap = 0) {
    batch_.targets = targets;
    const at::Tensor h = at::randn({kTokens, kHidden}).requires_grad_(true);
    const at::Tensor loss = chunked_cross_entropy(h, layer, context_, softcap);
    const at::Tensor h64 = reference_leaf(h);
    Leaves leaves;
    const at::Tensor logits = reference_logits(layer, h64, leaves, softcap);
    const at::Tensor expected = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum,
                                                       -100, context_.head.label_smoothing);
    EXPECT_NEAR(sums_.loss, expected.item<double>(), 1e-4 * expected.item<double>());
    EXPECT_NEAR(loss.item<double>(), 0.25 * expected.item<double>(), 1e-3);
    EXPECT_EQ(sums_.tokens, targets.ne(-100).sum().item<int64_t>());
    expect_gradients(loss, expected, h, h64, leaves);
  }

  // Pairs of documents of 50, 20, 70 and 10 tokens; the reference's log-probabilities are any.
  void check_pairs(Linear& layer, const at::Tensor& targets) {
    batch_.targets = targets;
    batch_.offsets = {0, 50, 70, 140, 150};
    PairPreference pairs;
    pairs.options.beta = 0.02;
    pairs.reference = {-180, -75, -260, -40};
    pairs.answer_tokens = {43, 13, 70, 1};
    context_.head.preference = &pairs;
    const at::Tensor h = at::randn({kTokens, kHidden}).requires_grad_(true);
    const at::Tensor loss = chunked_cross_entropy(h, layer, context_);

    const at::Tensor h64 = reference_leaf(h);
    Leaves leaves;
    const at::Tensor logits = reference_logits(layer, h64, leaves);
    const at::Tensor costs = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, -100);
    std::vector<at::Tensor> ratios;
    for (int64_t d = 0; d < 4; ++d) {
      const int64_t begin = batch_.offsets[d], end = batch_.offsets[d + 1];
      const at::Tensor log_prob = -costs.slice(0, begin, end).sum();
      EXPECT_NEAR(pairs.documents[d].log_prob, log_prob.item<double>(), 1e-3);
      EXPECT_EQ(pairs.documents[d].tokens,
                targets.slice(0, begin, end).ne(-100).sum().item<int64_t>());
      ratios.push_back(log_prob - pairs.reference[d]);
    }
    const at::Tensor expected = -at::log_sigmoid(0.02 * (ratios[0] - ratios[1])) -
                                at::log_sigmoid(0.02 * (ratios[2] - ratios[3]));
    EXPECT_NEAR(sums_.loss, expected.item<double>(), 1e-5);
    EXPECT_NEAR(loss.item<double>(), 0.25 * expected.item<double>(), 1e-5);
    expect_gradients(loss, expected, h, h64, leaves);
  }

  // Answers of 50, 20, 70 and 10 tokens, every other one desirable.
  void check_rated(Linear& layer, const at::Tensor& targets, double softcap) {
    batch_.targets = targets;
    batch_.offsets = {0, 50, 70, 140, 150};
    RatedPreference answers;
    answers.options = {.beta = 0.02, .desirable_weight = 0.7, .undesirable_weight = 1.5};
    answers.reference = {-180, -75, -260, -40};
    answers.are_desirable = {true, false, true, false};
    answers.divergence = 12;
    context_.head.preference = &answers;
    const at::Tensor h = at::randn({kTokens, kHidden}).requires_grad_(true);
    const at::Tensor loss = chunked_cross_entropy(h, layer, context_, softcap);

    const at::Tensor h64 = reference_leaf(h);
    Leaves leaves;
    const at::Tensor logits = reference_logits(layer, h64, leaves, softcap);
    const at::Tensor costs = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, -100);
    const at::Tensor means = logits.mean(1) * targets.ne(-100);
    at::Tensor expected = at::zeros({}, at::kDouble);
    for (size_t d = 0; d < 4; ++d) {
      const int64_t begin = batch_.offsets[d], end = batch_.offsets[d + 1];
      EXPECT_NEAR(answers.documents[d].mean_logits, means.slice(0, begin, end).sum().item<double>(),
                  1e-4);
      const at::Tensor ratio = -costs.slice(0, begin, end).sum() - answers.reference[d];
      const at::Tensor gain = at::sigmoid(0.02 * (ratio - answers.divergence));
      expected = expected + (d % 2 == 0 ? 0.7 * (1 - gain) : 1.5 * gain);
    }
    EXPECT_NEAR(sums_.loss, expected.item<double>(), 1e-5);
    expect_gradients(loss, expected, h, h64, leaves);
  }

  // The same answers in pairs that are weighted.
  void check_weighted_pairs(Linear& layer, const at::Tensor& targets, double softcap) {
    batch_.targets = targets;
    batch_.offsets = {0, 50, 70, 140, 150};
    PairPreference pairs;
    pairs.options = {.beta = 0.02, .weighs_pairs = true};
    pairs.reference = {-180, -75, -260, -40};
    pairs.answer_tokens = {43, 13, 70, 1};
    context_.head.preference = &pairs;
    const at::Tensor h = at::randn({kTokens, kHidden}).requires_grad_(true);
    const at::Tensor loss = chunked_cross_entropy(h, layer, context_, softcap);

    const at::Tensor h64 = reference_leaf(h);
    Leaves leaves;
    const at::Tensor logits = reference_logits(layer, h64, leaves, softcap);
    const at::Tensor costs = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, -100);
    const at::Tensor log_squares =
        at::log_softmax(logits, 1).mul(2).logsumexp(1).detach() * targets.ne(-100);
    std::vector<at::Tensor> ratios;
    std::vector<double> weights;
    for (size_t d = 0; d < 4; ++d) {
      const int64_t begin = batch_.offsets[d], end = batch_.offsets[d + 1];
      const auto sum_of = [&](const at::Tensor& rows) { return rows.slice(0, begin, end).sum(); };
      const double expected = sum_of(log_squares).item<double>();
      EXPECT_NEAR(pairs.documents[d].log_squares, expected, 1e-5 * std::abs(expected));
      ratios.push_back(-sum_of(costs) - pairs.reference[d]);
      const double tokens = sum_of(targets.ne(-100)).item<double>();
      weights.push_back(std::exp((-sum_of(costs).item<double>() - expected) / tokens));
    }
    const at::Tensor expected =
        -weights[0] * weights[1] * at::log_sigmoid(0.02 * (ratios[0] - ratios[1])) -
        weights[2] * weights[3] * at::log_sigmoid(0.02 * (ratios[2] - ratios[3]));
    EXPECT_NEAR(sums_.loss, expected.item<double>(), 1e-5 * expected.item<double>());
    expect_gradients(loss, expected, h, h64, leaves);
  }

  Batch batch_;
  LossSums sums_;
  ForwardContext context_;
};

at::Tensor random_targets(int64_t vocab) { return at::randint(0, vocab, {kTokens}, at::kLong); }

TEST_F(LossTest, SeveralChunks) {
  constexpr int64_t kVocab = 70001;
  const auto layer = make(kVocab);
  check(*layer, random_targets(kVocab));
}

TEST_F(LossTest, CappedLogitsAndSmoothedTargets) {
  constexpr int64_t kVocab = 70001;
  for (const float smoothing : {0.0f, 0.2f}) {
    context_.head.label_smoothing = smoothing;
    sums_ = {};
    check(*make(kVocab), random_targets(kVocab), /*softcap=*/2);
    sums_ = {};
    check(*make(51), random_targets(51));
  }
}

TEST_F(LossTest, UntrainedRowsAreLeftOut) {
  const auto layer = make(50);
  at::Tensor targets = random_targets(50);
  targets.masked_fill_(at::rand({kTokens}).lt(0.6), -100);
  check(*layer, targets);
}

TEST_F(LossTest, BranchOnTheOutputLayer) {
  const auto layer = make_with_branch(50);
  check(*layer, random_targets(50));
  EXPECT_TRUE(at::isnan(gradient_of(layer->weight())).all().item<bool>());
}

at::Tensor targets_behind_prompts(int64_t vocab) {
  at::Tensor targets = random_targets(vocab);
  for (const auto& [begin, end] : {std::pair{0, 7}, {50, 57}, {70, 70}, {140, 149}}) {
    targets.slice(0, begin, end).fill_(-100);
  }
  return targets;
}

TEST_F(LossTest, PairsOfDocuments) {
  // In several chunks, and with a layer that trains or does not.
  for (const int64_t vocab : {50, 70001}) {
    for (const bool trains : {false, true}) {
      const auto layer = make(vocab);
      layer->weight().set_requires_grad(trains);
      sums_ = {};
      check_pairs(*layer, targets_behind_prompts(vocab));
    }
  }
}

TEST_F(LossTest, PairsBehindABranchOnTheOutputLayer) {
  const auto layer = make_with_branch(50);
  check_pairs(*layer, random_targets(50));
}

// In several chunks, and with a layer that trains, so that its logits are made twice, or does not.
TEST_F(LossTest, RatedDocuments) {
  for (const int64_t vocab : {50, 70001}) {
    for (const bool trains : {false, true}) {
      const auto layer = make(vocab);
      layer->weight().set_requires_grad(trains);
      sums_ = {};
      check_rated(*layer, targets_behind_prompts(vocab), /*softcap=*/trains ? 2 : 0);
    }
  }
}

TEST_F(LossTest, WeightedPairs) {
  for (const int64_t vocab : {50, 70001}) {
    for (const bool trains : {false, true}) {
      const auto layer = make(vocab);
      layer->weight().set_requires_grad(trains);
      sums_ = {};
      check_weighted_pairs(*layer, targets_behind_prompts(vocab), /*softcap=*/trains ? 2 : 0);
    }
  }
}

TEST_F(LossTest, PairsWithoutAReferenceAreOnlySummed) {
  const auto layer = make(50);
  batch_.targets = targets_behind_prompts(50);
  batch_.offsets = {0, 50, 70, 140, 150};
  PairPreference pairs;
  context_.head.preference = &pairs;
  chunked_cross_entropy(at::randn({kTokens, kHidden}), *layer, context_);
  ASSERT_EQ(pairs.documents.size(), 4u);
  double log_prob = 0;
  for (const DocumentSums& document : pairs.documents) log_prob += document.log_prob;
  EXPECT_NEAR(log_prob, -sums_.loss, 1e-9 * sums_.loss);
  EXPECT_EQ(pairs.documents[3].tokens, 1);
}

TEST_F(LossTest, NoTrainedTokenWritesZeroGradients) {
  const auto layer = make(50);
  batch_.targets = at::full({kTokens}, -100, at::kLong);
  const at::Tensor h = at::randn({kTokens, kHidden}).requires_grad_(true);
  const at::Tensor loss = chunked_cross_entropy(h, *layer, context_);
  torch::autograd::backward({loss}, {at::ones({})});
  EXPECT_EQ(loss.item<float>(), 0.0f);
  EXPECT_EQ(sums_.tokens, 0);
  EXPECT_TRUE(at::equal(h.grad(), at::zeros_like(h)));
  EXPECT_TRUE(at::equal(gradient_of(layer->weight()), at::zeros({50, kHidden})));
}

TEST_F(LossTest, EvaluationWritesNoGradient) {
  const at::NoGradGuard guard;
  const auto layer = make(50);
  batch_.targets = random_targets(50);
  chunked_cross_entropy(at::randn({kTokens, kHidden}), *layer, context_);
  EXPECT_TRUE(at::isnan(gradient_of(layer->weight())).all().item<bool>());
}

TEST_F(LossTest, BackwardFromAnotherGradientIsAnError) {
  const auto layer = make(50);
  batch_.targets = random_targets(50);
  const at::Tensor h = at::randn({kTokens, kHidden}).requires_grad_(true);
  const at::Tensor loss = chunked_cross_entropy(h, *layer, context_);
  EXPECT_THROW(torch::autograd::backward({loss * 2.0}, {at::ones({})}), InternalError);
}

}  // namespace
}  // namespace strata::nn
