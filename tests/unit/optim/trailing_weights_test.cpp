// Oracle: the formula, element by element; the update rule alone, to the bit.
#include "strata/optim/trailing_weights.h"

#include <gtest/gtest.h>

#include "steps_of_ranks.h"
#include "strata/shard/segments.h"

namespace strata::optim {
namespace {

class TrailingWeightsTest : public ::testing::Test {
 protected:
  TrailingWeightsTest()
      : model_(small_model(/*has_frozen_base=*/false)), store_(*model_, mesh_, {}) {
    fill(store_);
    weights_ = std::make_unique<TrailingWeights>(store_, make_optimizer(store_, {}));
  }

  // Of all homes, and of the weights behind them.
  std::vector<at::Tensor> trained() {
    std::vector<at::Tensor> found;
    for (const shard::OwnPiece& own : shard::own_trained_pieces(store_)) {
      found.push_back(shard::value_of(store_, own).clone());
    }
    return found;
  }
  std::vector<at::Tensor> trailing() {
    std::vector<at::Tensor> found;
    for (const StateTensor& state : weights_->state()) {
      if (state.name == "reference") found.push_back(state.data.clone());
    }
    return found;
  }
  void move_trained() {
    for (const shard::OwnPiece& own : shard::own_trained_pieces(store_)) {
      shard::value_of(store_, own).mul_(0.5).add_(1);
    }
  }
  static void expect_equal(const std::vector<at::Tensor>& found,
                           const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }

  comm::Mesh mesh_ = comm::make_fake_mesh(1, 1);
  std::unique_ptr<models::Model> model_;
  shard::UnitStore store_;
  std::unique_ptr<TrailingWeights> weights_;
};

TEST_F(TrailingWeightsTest, FollowByTheirShare) {
  weights_->take();
  const std::vector<at::Tensor> first = trained();
  expect_equal(trailing(), first);
  move_trained();
  weights_->follow(0.25);
  std::vector<at::Tensor> expected = trained();
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = (first[i].to(at::kDouble) * 0.75 + expected[i].to(at::kDouble) * 0.25);
    EXPECT_TRUE(at::allclose(trailing()[i].to(at::kDouble), expected[i], 1e-6, 1e-7));
  }
  weights_->follow(1);
  expect_equal(trailing(), trained());
}

TEST_F(TrailingWeightsTest, ChangePlacesAndBack) {
  weights_->take();
  const std::vector<at::Tensor> first = trained();
  move_trained();
  const std::vector<at::Tensor> second = trained();
  weights_->exchange();
  expect_equal(trained(), first);
  expect_equal(trailing(), second);
  weights_->exchange();
  expect_equal(trained(), second);
  expect_equal(trailing(), first);
}

TEST_F(TrailingWeightsTest, TheRuleCountsItsSteps) {
  const size_t of_rule = make_optimizer(store_, {})->state().size();
  EXPECT_EQ(weights_->state().size(), of_rule + trained().size());
  weights_->set_num_steps(4);
  weights_->step(0, 1);
  EXPECT_EQ(weights_->num_steps(), 5);
}

}  // namespace
}  // namespace strata::optim
