// Oracle: ATen's autograd in double precision over every expert for every token; for the order of
// rows, the definition; bit-equality between numbers of threads.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "gathered.h"
#include "strata/nn/experts/experts.h"
#include "strata/nn/experts/grouped_product.h"

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 7, kExperts = 9;

struct Sizes {
  int64_t hidden = 6, width = 5;
};
// Of rows that begin at multiples of 16 bytes, as products of all experts at once ask.
constexpr Sizes kAligned{.hidden = 8, .width = 4};

struct Layers {
  std::vector<Linear> all;
  std::vector<Expert> experts;
};

void add_branch(Linear& layer) {
  const std::string path = layer.path();
  auto branch = std::unique_ptr<LowRankBranch>(
      new LowRankBranch{.a = {path + ".a", {2, layer.in_features()}, at::kFloat},
                        .b = {path + ".b", {layer.out_features(), 2}, at::kFloat},
                        .scaling = 1.5});
  give_memory(branch->a);
  give_memory(branch->b);
  layer.attach_low_rank(std::move(branch));
}

Layers make_layers(bool with_branches, const Sizes& sizes = {}) {
  Layers layers;
  layers.all.reserve(3 * kExperts);
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto add = [&](const char* name, int64_t in, int64_t out) {
      Linear& layer = layers.all.emplace_back(
          std::to_string(e) + name,
          Linear::Options{.in_features = in, .out_features = out, .storage = at::kFloat});
      give_memory(layer.weight());
      layer.weight().set_requires_grad(!with_branches);
      if (with_branches) add_branch(layer);
      return &layer;
    };
    layers.experts.push_back({.gate = add("gate", sizes.hidden, sizes.width),
                              .up = add("up", sizes.hidden, sizes.width),
                              .down = add("down", sizes.width, sizes.hidden)});
  }
  return layers;
}

// Moves the weights into one piece of memory, as a unit has them: those of an expert beside each
// other, with something that is no number between experts.
void bring_together(Layers& layers) {
  constexpr int64_t kBetween = 4;
  int64_t of_expert = kBetween;
  for (size_t i = 0; i < 3; ++i) of_expert += layers.all[i].weight().numel();
  const at::Tensor memory = at::full({kExperts * of_expert}, std::nan(""));
  int64_t place = 0;
  for (size_t i = 0; i < layers.all.size(); ++i) {
    Parameter& weight = layers.all[i].weight();
    const at::Tensor part = memory.narrow(0, place, weight.numel());
    part.copy_(weight.value().view({-1}));
    weight.attach_value(part);
    place += weight.numel() + (i % 3 == 2 ? kBetween : 0);
  }
}

std::vector<Parameter*> trained(const Layers& layers) {
  std::vector<Parameter*> list, all;
  for (const Linear& layer : layers.all) layer.append_parameters(all);
  for (Parameter* p : all) {
    if (p->requires_grad()) list.push_back(p);
  }
  return list;
}

using Leaves = std::map<const Parameter*, at::Tensor>;

at::Tensor reference_weight(const Linear& layer, const Leaves& leaves) {
  const auto value = [&](const Parameter& p) {
    const auto leaf = leaves.find(&p);
    return leaf != leaves.end() ? leaf->second : p.value().to(at::kDouble);
  };
  const at::Tensor weight = value(layer.weight());
  if (layer.low_rank() == nullptr) return weight;
  return weight +
         layer.low_rank()->scaling * at::mm(value(layer.low_rank()->b), value(layer.low_rank()->a));
}

// Every expert for every token, of which the weights of those that were not chosen are zero.
at::Tensor reference(const Layers& layers, const Leaves& leaves, const at::Tensor& x,
                     const at::Tensor& logits, const RouterOptions& options) {
  const at::Tensor probabilities = at::softmax(logits, 1);
  const auto [best, experts] = at::topk(probabilities, options.experts_per_token, 1);
  const at::Tensor weights = options.normalizes ? best / best.sum(1, true) : best;
  at::Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < kExperts; ++e) {
    const Expert& expert = layers.experts[static_cast<size_t>(e)];
    const at::Tensor gate = at::mm(x, reference_weight(*expert.gate, leaves).t());
    const at::Tensor up = at::mm(x, reference_weight(*expert.up, leaves).t());
    const at::Tensor out = at::mm(at::silu(gate) * up, reference_weight(*expert.down, leaves).t());
    y = y + out * (weights * (experts == e)).sum(1, true);
  }
  return y;
}

struct Inputs {
  at::Tensor x, logits, residual;
};

// The last expert is chosen by no token.
Inputs make_inputs(const Sizes& sizes = {}) {
  at::manual_seed(3);
  at::Tensor logits = at::randn({kTokens, kExperts});
  logits.select(1, kExperts - 1).sub_(20);
  return {at::randn({kTokens, sizes.hidden}).requires_grad_(true), logits.requires_grad_(true),
          at::randn({kTokens, sizes.hidden}).requires_grad_(true)};
}

at::Tensor forward(const Layers& layers, const Inputs& in, const RouterOptions& options,
                   const ForwardContext& context = {}) {
  return add_experts_last({.each = layers.experts}, Remakable(in.x), in.residual,
                          route(in.logits, options, context), context);
}

class ExpertsGradients : public testing::TestWithParam<std::tuple<bool, bool, int, bool>> {
 protected:
  ~ExpertsGradients() override { choose_grouped_products(GroupedProducts::kWhereFaster); }
};

TEST_P(ExpertsGradients, EqualThoseOfTheSumOverAll) {
  const auto [normalizes, with_branches, per_token, grouped] = GetParam();
  const RouterOptions options{.experts_per_token = per_token, .normalizes = normalizes};
  const Sizes sizes = grouped ? kAligned : Sizes{};
  const Inputs in = make_inputs(sizes);
  Layers layers = make_layers(with_branches, sizes);
  if (grouped) {
    bring_together(layers);
    choose_grouped_products(GroupedProducts::kAlways);
  }
  Leaves leaves;
  for (const Parameter* p : trained(layers)) leaves[p] = reference_leaf(p->value());
  const at::Tensor x64 = reference_leaf(in.x), logits64 = reference_leaf(in.logits);
  const at::Tensor expected = reference(layers, leaves, x64, logits64, options);
  const at::Tensor y = forward(layers, in, options);
  EXPECT_LT(relative_error(y, expected + in.residual.to(at::kDouble)), 1e-5);

  const at::Tensor dy = at::randn({kTokens, sizes.hidden});
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_EQ(grouped_product_refusal(), "");
  EXPECT_LT(relative_error(in.x.grad(), x64.grad()), 1e-5);
  if (normalizes && per_token == 1) {  // the weight is 1 whatever the logits
    EXPECT_LT(in.logits.grad().norm().item<double>(), 1e-5);
  } else {
    EXPECT_LT(relative_error(in.logits.grad(), logits64.grad()), 1e-5);
  }
  EXPECT_TRUE(at::equal(in.residual.grad(), dy));
  for (const auto& [parameter, leaf] : leaves) {
    const at::Tensor found = gradient_of(*const_cast<Parameter*>(parameter));
    const bool has_no_rows = leaf.grad().count_nonzero().item<int64_t>() == 0;
    EXPECT_TRUE(has_no_rows || parameter->name()[0] != '0' + kExperts - 1) << parameter->name();
    if (has_no_rows) {
      EXPECT_TRUE(at::equal(found, at::zeros_like(found))) << parameter->name();
    } else {
      EXPECT_LT(relative_error(found, leaf.grad()), 1e-5) << parameter->name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixtures, ExpertsGradients,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Values(1, 3),
                                          testing::Bool()));

class GroupedProduct : public testing::Test {
 protected:
  GroupedProduct() {
    choose_grouped_products(GroupedProducts::kAlways);
    for (const Expert& expert : layers_.experts) weights_.push_back(&expert.up->weight());
  }
  ~GroupedProduct() override { choose_grouped_products(GroupedProducts::kWhereFaster); }

  Layers layers_ = make_layers(/*with_branches=*/false, kAligned);
  std::vector<const Parameter*> weights_;
  const ExpertRows rows_ = sort_by_expert(at::arange(18).view({9, 2}).remainder(4), kExperts);
};

// Oracle: products one by one. Experts from the fifth on have no rows.
TEST_F(GroupedProduct, IsThatOfEveryExpert) {
  bring_together(layers_);
  for (const bool back : {false, true}) {
    const at::Tensor x = at::randn({18, back ? kAligned.width : kAligned.hidden});
    const auto found = grouped_product(weights_, x, rows_, /*transposed=*/!back);
    ASSERT_TRUE(found.has_value());
    for (size_t e = 0; e < kExperts; ++e) {
      const at::Tensor& weight = weights_[e]->value();
      const at::Tensor expected = at::mm(rows_of(x, rows_, e), back ? weight : weight.t());
      EXPECT_TRUE(at::allclose(rows_of(*found, rows_, e), expected, 1e-5, 1e-6)) << e;
    }
  }
  EXPECT_EQ(grouped_product_refusal(), "");
}

TEST_F(GroupedProduct, IsNotOfWeightsApart) {
  const at::Tensor x = at::randn({18, kAligned.hidden});
  EXPECT_FALSE(grouped_product(weights_, x, rows_, /*transposed=*/true).has_value());
  bring_together(layers_);
  std::swap(weights_[2], weights_[3]);
  EXPECT_FALSE(grouped_product(weights_, x, rows_, /*transposed=*/true).has_value());
}

TEST_F(GroupedProduct, IsNotTakenWhereItIsALoopInside) {
  bring_together(layers_);
  choose_grouped_products(GroupedProducts::kWhereFaster);
  EXPECT_FALSE(
      grouped_product(weights_, at::randn({18, kAligned.hidden}), rows_, true).has_value());
}

TEST_F(GroupedProduct, IsNotOfOtherTypes) {
  bring_together(layers_);
  const at::Tensor x = at::randn({18, kAligned.hidden}).to(at::kBFloat16);
  EXPECT_FALSE(grouped_product(weights_, x, rows_, /*transposed=*/true).has_value());
}

using ops::quant::Format;
using ops::quant::Kind;

constexpr int64_t kRows = 48, kColumns = 64;  // of matrices in codes

// Of every expert, one behind the other with something between them, as a unit has them.
struct ParametersInCodes {
  std::vector<std::unique_ptr<Parameter>> of_each;

  explicit ParametersInCodes(const Format& format, int64_t between = 32) {
    at::manual_seed(8);
    for (int64_t e = 0; e < kExperts; ++e) add({kRows, kColumns}, format);
    const int64_t own = of_each[0]->stored_numel(), distance = (own + between) / 16 * 16;
    const at::Tensor memory = at::full({kExperts * distance}, 255, at::kByte);
    for (int64_t e = 0; e < kExperts; ++e) {
      const at::Tensor part = memory.narrow(0, e * distance, own);
      part.copy_(of_each[static_cast<size_t>(e)]->encoded(at::randn({kRows, kColumns})));
      of_each[static_cast<size_t>(e)]->attach_value(part);
    }
  }
  void add(const std::vector<int64_t>& shape, const Format& format) {
    of_each.push_back(std::make_unique<Parameter>("w", shape, at::kFloat));
    of_each.back()->set_requires_grad(false);
    of_each.back()->set_quantization({.format = format, .compute = {}});
  }
  std::vector<const Parameter*> all() const {
    std::vector<const Parameter*> list;
    for (const auto& parameter : of_each) list.push_back(parameter.get());
    return list;
  }
};

class GroupedCodes : public testing::TestWithParam<std::tuple<Format, GroupedProducts>> {
 protected:
  ~GroupedCodes() override { choose_grouped_products(GroupedProducts::kWhereFaster); }

  // Oracle: products one by one with what a parameter is decoded to. Experts from the fifth on have
  // no rows, and so has the third.
  void expect_products(const std::vector<const Parameter*>& weights, const at::Tensor& dense) {
    const at::Tensor chosen = at::arange(36).view({18, 2}).remainder(4);
    const ExpertRows rows = sort_by_expert(chosen.add(chosen.eq(2)), kExperts);
    for (const bool transposed : {false, true}) {
      const at::Tensor x = at::randn({36, transposed ? dense.size(2) : dense.size(1)});
      choose_grouped_products(std::get<1>(GetParam()));
      const auto found = grouped_product(weights, x, rows, transposed);
      ASSERT_TRUE(found.has_value());
      for (size_t e = 0; e < kExperts; ++e) {
        const at::Tensor matrix = dense[static_cast<int64_t>(e)];
        const at::Tensor expected = at::mm(rows_of(x, rows, e), transposed ? matrix.t() : matrix);
        EXPECT_TRUE(at::allclose(rows_of(*found, rows, e), expected, 1e-5, 1e-5)) << e;
      }
    }
    EXPECT_EQ(grouped_product_refusal(), "");
  }
};

TEST_P(GroupedCodes, OfLayers) {
  const ParametersInCodes codes(std::get<0>(GetParam()));
  std::vector<at::Tensor> dense;
  for (const Parameter* p : codes.all()) dense.push_back(p->dense_value(at::kFloat));
  expect_products(codes.all(), at::stack(dense));
}

TEST_P(GroupedCodes, OfOneParameter) {
  Parameter weight("w", {kExperts, kRows, kColumns}, at::kFloat);
  weight.set_requires_grad(false);
  weight.set_quantization({.format = std::get<0>(GetParam()), .compute = {}});
  weight.attach_value(weight.encoded(at::randn({kExperts, kRows, kColumns})));
  expect_products({&weight}, weight.dense_value(at::kFloat));
}

INSTANTIATE_TEST_SUITE_P(
    Forms, GroupedCodes,
    testing::Combine(testing::Values(Format{Kind::kNf4, 64, false}, Format{Kind::kFp4, 64, true},
                                     Format{Kind::kInt8, 64, false}),
                     testing::Values(GroupedProducts::kAlways, GroupedProducts::kTwoDecoded)));

TEST(GroupedCodesOfFiles, InMxfp4) {
  at::manual_seed(9);
  Parameter weight("w", {kExperts, kRows * 2, kColumns}, at::kFloat);  // whole blocks of 32 rows
  weight.set_requires_grad(false);
  weight.set_quantization({.format = ops::quant::kMxfp4Format, .compute = {}});
  // Scales of about 1.
  weight.attach_value(at::randint(120, 130, {weight.stored_numel()}, at::kByte));
  const at::Tensor dense = weight.dense_value(at::kFloat);
  const ExpertRows rows = sort_by_expert(at::arange(18).view({9, 2}).remainder(5), kExperts);
  const at::Tensor x = at::randn({18, kRows * 2});
  for (const GroupedProducts how : {GroupedProducts::kAlways, GroupedProducts::kTwoDecoded}) {
    choose_grouped_products(how);
    const auto found = grouped_product({&weight}, x, rows, /*transposed=*/false);
    choose_grouped_products(GroupedProducts::kWhereFaster);
    ASSERT_TRUE(found.has_value());
    for (size_t e = 0; e < kExperts; ++e) {
      const at::Tensor expected = at::mm(rows_of(x, rows, e), dense[static_cast<int64_t>(e)]);
      EXPECT_TRUE(at::allclose(rows_of(*found, rows, e), expected, 1e-5, 1e-5)) << e;
    }
  }
}

// Codes that are decoded to another type than that of the rows, and codes at no one distance.
TEST(GroupedCodesOfFiles, AreNotOfOthers) {
  const ParametersInCodes codes({Kind::kNf4, 64, false});
  const ExpertRows rows = sort_by_expert(at::arange(18).view({9, 2}).remainder(5), kExperts);
  const at::Tensor x = at::randn({18, kColumns});
  choose_grouped_products(GroupedProducts::kAlways);
  std::vector<const Parameter*> weights = codes.all();
  EXPECT_TRUE(grouped_product(weights, x, rows, /*transposed=*/true).has_value());
  std::swap(weights[0], weights[1]);
  EXPECT_FALSE(grouped_product(weights, x, rows, /*transposed=*/true).has_value());
  Parameter rounded("w", {kExperts, kRows, kColumns}, at::kFloat);
  rounded.set_requires_grad(false);
  rounded.set_quantization({.format = {Kind::kNf4, 64, false}, .compute = at::kBFloat16});
  rounded.attach_value(rounded.encoded(at::randn({kExperts, kRows, kColumns})));
  EXPECT_FALSE(grouped_product({&rounded}, x, rows, /*transposed=*/true).has_value());
  choose_grouped_products(GroupedProducts::kWhereFaster);
}

TEST(Experts, GradientsDoNotNeedTheResult) {
  const RouterOptions options{.experts_per_token = 2, .normalizes = true};
  const Layers layers = make_layers(/*with_branches=*/true);
  std::vector<std::vector<at::Tensor>> gradients;
  for (const bool wants_output : {true, false}) {
    Inputs in = make_inputs();
    for (Parameter* p : trained(layers)) {
      p->attach_grad(at::full(p->shape(), std::nan("")), /*overwrite=*/true);
    }
    const at::Tensor y = forward(layers, in, options, {.pass = {.wants_output = wants_output}});
    EXPECT_EQ(y.sizes(), in.residual.sizes());
    torch::autograd::backward({y}, {at::ones({kTokens, Sizes{}.hidden})});
    gradients.push_back({in.x.grad(), in.logits.grad(), in.residual.grad()});
    for (Parameter* p : trained(layers)) gradients.back().push_back(gradient_of(*p).clone());
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  }
}

// Two threads take one expert after the other; three, for which there are too few, share products.
TEST(Experts, DoNotDependOnThreads) {
  const RouterOptions options{.experts_per_token = 5, .normalizes = true};
  const int threads = at::get_num_threads();
  for (const bool with_branches : {false, true}) {
    const Layers layers = make_layers(with_branches);
    std::vector<std::vector<at::Tensor>> results;
    for (const int n : {1, 2, 3}) {
      at::set_num_threads(n);
      const Inputs in = make_inputs();
      const ExpertRows rows = sort_by_expert(route(in.logits, options, {}).experts, kExperts);
      int64_t num_busy = 0;
      for (size_t e = 0; e < kExperts; ++e) num_busy += rows.count(e) > 0 ? 1 : 0;
      ASSERT_EQ(num_busy, kExperts - 1);  // the last has none
      for (Parameter* p : trained(layers)) {
        p->attach_grad(at::full(p->shape(), std::nan("")), /*overwrite=*/true);
      }
      const at::Tensor y = forward(layers, in, options);
      torch::autograd::backward({y}, {at::ones({kTokens, Sizes{}.hidden})});
      results.push_back({y, in.x.grad(), in.logits.grad(), in.residual.grad()});
      for (Parameter* p : trained(layers)) results.back().push_back(gradient_of(*p));
    }
    at::set_num_threads(threads);
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << with_branches << i;
      EXPECT_TRUE(at::equal(results[0][i], results[2][i])) << with_branches << i;
    }
  }
}

TEST(ExpertRows, VisitsEveryExpertOnce) {
  const at::Tensor chosen = at::arange(24).view({12, 2}).remainder(kExperts);
  const ExpertRows rows = sort_by_expert(chosen, kExperts);
  const int threads = at::get_num_threads();
  for (const int n : {1, 2, 3}) {
    at::set_num_threads(n);
    for (const bool at_once : {false, true}) {
      std::vector<std::atomic<int>> visits(kExperts);
      for_each_expert(rows, at_once, [&](size_t e) {
        EXPECT_EQ(at::GradMode::is_enabled(), !at_once || n == 3);
        ++visits[e];
      });
      for (const std::atomic<int>& count : visits) EXPECT_EQ(count.load(), 1);
    }
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::GradMode::is_enabled());
}

// Regression: compiled without OpenMP the loop ran on one thread, and every product inside as well.
TEST(ExpertRows, SeveralThreadsVisitExperts) {
  const at::Tensor chosen = at::arange(24).view({12, 2}).remainder(kExperts);
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  std::mutex mutex;
  std::condition_variable came;
  std::set<std::thread::id> visitors;
  for_each_expert(sort_by_expert(chosen, kExperts), /*at_once=*/true, [&](size_t e) {
    std::unique_lock lock(mutex);
    visitors.insert(std::this_thread::get_id());
    came.notify_all();
    const std::chrono::seconds patience(e == 0 ? 10 : 0);  // the first to be visited
    came.wait_for(lock, patience, [&] { return visitors.size() == 2; });
  });
  at::set_num_threads(threads);
  EXPECT_EQ(visitors.size(), 2u);
}

TEST(ExpertRows, AreThoseOfOneExpertTogetherInTheOrderOfTokens) {
  at::manual_seed(5);
  const at::Tensor chosen = std::get<1>(at::topk(at::rand({9, 6}), 2, 1));
  for (const ExpertRows& rows : {sort_by_expert(chosen, 7), sort_on_device(chosen, 7)}) {
    ASSERT_EQ(rows.begin.size(), 8u);
    EXPECT_EQ(rows.begin.back(), 18);
    for (size_t e = 0; rows.ends.defined() && e < 7; ++e) {
      EXPECT_EQ(rows.ends[static_cast<int64_t>(e)].item<int>(), rows.begin[e + 1]);
    }
    for (int64_t t = 0; t < 9; ++t) {
      for (int64_t j = 0; j < 2; ++j) {
        const auto row = rows.place[j * 9 + t].item<int64_t>();
        const auto expert = static_cast<size_t>(chosen[t][j].item<int64_t>());
        EXPECT_EQ(rows.token[row].item<int64_t>(), t);
        EXPECT_GE(row, rows.begin[expert]);
        EXPECT_LT(row, rows.begin[expert + 1]);
        const bool is_first = row == rows.begin[expert];
        EXPECT_TRUE(is_first || rows.token[row - 1].item<int64_t>() < t);
      }
    }
  }
}

TEST(ExpertRows, WithoutDataAreSpreadEvenly) {
  const auto meta = at::empty({5, 2}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  EXPECT_EQ(sort_by_expert(meta, 4).begin, (std::vector<int64_t>{0, 2, 5, 7, 10}));
}

// Its weight is 1, whatever the logits are.
TEST(Router, OneNormalisedExpertHasNoGradient) {
  const at::Tensor logits =
      at::sin(at::arange(35, at::kFloat) * 1.7).mul_(4).view({7, 5}).requires_grad_(true);
  const Routing routing = route(logits, {.experts_per_token = 1, .normalizes = true}, {});
  const at::Tensor gradient = at::cos(at::arange(7, at::kFloat)).view({7, 1});
  const at::Tensor dlogits = torch::autograd::grad({routing.weights}, {logits}, {gradient})[0];
  EXPECT_TRUE(dlogits.eq(0).all().item<bool>()) << dlogits;
}

}  // namespace
}  // namespace strata::nn
