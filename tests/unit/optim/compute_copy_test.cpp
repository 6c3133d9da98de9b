// Oracle: the same steps with masters that are converted whenever they are gathered, to the bit;
// values written to a home, rounded by libtorch.
#include <gtest/gtest.h>

#include "steps_of_ranks.h"
#include "strata/base/error.h"

namespace strata::optim {
namespace {

using Options = shard::StoreOptions;

struct Case {
  std::string name;
  int world = 1;
  int shard_size = 1;
  bool has_frozen_base = false;
  std::string optimizer = "adamw_torch";
  bool reduces_at_the_end = false;
};

class ComputeCopy : public ::testing::TestWithParam<Case> {};

TEST_P(ComputeCopy, ChangesNoBit) {
  const Case& row = GetParam();
  Job job{.world = row.world,
          .shard_size = row.shard_size,
          .has_frozen_base = row.has_frozen_base,
          .optimizer = row.optimizer,
          .store = {.compute_type = at::kBFloat16}};
  job.schedule.reduce_every_micro_step = !row.reduces_at_the_end;
  const std::vector<Found> expected = run(job);
  job.schedule.resident = true;
  const std::vector<Found> found = run(job);
  expect_equal_bits(found, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, ComputeCopy,
    ::testing::Values(
        Case{.name = "one_rank"}, Case{.name = "frozen_base", .has_frozen_base = true},
        Case{.name = "two_shards", .world = 2, .shard_size = 2},
        Case{.name = "two_copies", .world = 2, .shard_size = 1},
        Case{.name = "two_copies_of_two_shards", .world = 4, .shard_size = 2},
        Case{.name = "reduced_at_the_end", .world = 2, .shard_size = 2, .reduces_at_the_end = true},
        Case{.name = "state_in_8_bits", .world = 2, .shard_size = 2, .optimizer = "adamw_8bit"},
        Case{.name = "lion", .optimizer = "lion_32bit"},
        Case{.name = "adafactor", .optimizer = "adafactor"}),
    [](const auto& info) { return info.param.name; });

// A layer that stays gathered in bf16, on one rank.
struct Layer {
  static constexpr int kUnit = 1;

  explicit Layer(const Options& options = {.compute_type = at::kBFloat16},
                 bool has_frozen_base = false)
      : model(small_model(has_frozen_base)), store(*model, mesh, options) {
    fill(store);
    store.gather(kUnit);
    store.wait_gather(kUnit);
  }
  nn::Parameter& parameter() { return *store.unit(kUnit).segments[0].extents[0].parameter; }
  // Of the parameter, in its home.
  at::Tensor master() {
    return store.home(kUnit, 0).value.narrow(0, 0, parameter().numel()).view(parameter().shape());
  }
  void update(const std::string& optimizer) {
    for (int u = 0; u < store.num_units(); ++u) {
      store.open_gradients(u, /*first_micro_step=*/true);
      for (const shard::Extent& extent : store.unit(u).segments[0].extents) {
        extent.parameter->accumulate_grad(at::ones(extent.parameter->shape()));
      }
      store.reduce(u, /*last_micro_step=*/true);
      store.wait_reduce(u);
    }
    make_optimizer(store, {.name = optimizer})->step(1e-2, 1);
  }
  at::Tensor refreshed() {
    store.refresh(kUnit);
    store.wait_gather(kUnit);
    return parameter().value();
  }

  std::unique_ptr<models::Model> model;
  comm::Mesh mesh = comm::make_fake_mesh(1, 1);
  shard::UnitStore store;
};

TEST(ComputeCopy, IsNotConvertedAgain) {
  for (const std::string optimizer : {"adamw_torch", "adamw_8bit", "lion_32bit"}) {
    Layer layer;
    const at::Tensor master = layer.master();
    const at::Tensor before = layer.parameter().value().clone();
    layer.update(optimizer);
    const at::Tensor expected = master.to(at::kBFloat16);
    master.zero_();  // behind the store's back
    EXPECT_TRUE(at::equal(layer.refreshed(), expected)) << optimizer;
    EXPECT_FALSE(at::equal(expected, before)) << optimizer;
  }
}

TEST(ComputeCopy, GivesWayToWhatIsWrittenLater) {
  Layer layer;
  layer.update("adamw_torch");
  const at::Tensor loaded = at::randn(layer.parameter().shape());
  place_tensor(layer.store, layer.parameter(), loaded);
  EXPECT_TRUE(at::equal(layer.refreshed(), loaded.to(at::kBFloat16)));
}

TEST(ComputeCopy, IsNotThatOfAnotherVisit) {
  Layer layer;
  const at::Tensor master = layer.master();
  layer.update("adamw_torch");
  layer.store.release(Layer::kUnit);
  layer.store.gather(Layer::kUnit);
  layer.store.wait_gather(Layer::kUnit);
  EXPECT_TRUE(at::equal(layer.parameter().value(), master.to(at::kBFloat16)));
}

TEST(ComputeCopy, IsNoValueUntilItIsRefreshed) {
  Layer layer;
  layer.update("adamw_torch");
  EXPECT_THROW((void)layer.parameter().value(), InternalError);
  (void)layer.refreshed();
  EXPECT_TRUE(layer.parameter().is_gathered());
}

TEST(ComputeCopy, IsOnlyWhereGathersConvertInPlace) {
  const auto copy_of = [](Layer&& layer, int segment) {
    return layer.store.compute_copy(Layer::kUnit, segment);
  };
  EXPECT_TRUE(copy_of(Layer(), 0).defined());
  EXPECT_TRUE(copy_of(Layer(Options{.compute_type = at::kHalf}), 0).defined());
  EXPECT_FALSE(copy_of(Layer(Options{}), 0).defined()) << "fp32";
  EXPECT_FALSE(copy_of(Layer(Options{.param_type = at::kBFloat16}), 0).defined()) << "widened";
  EXPECT_FALSE(
      copy_of(Layer(Options{.compute_type = at::kBFloat16, .homes_on_host = true}), 0).defined());
  // Frozen segments come first.
  EXPECT_FALSE(copy_of(Layer(Options{.compute_type = at::kBFloat16}, /*has_frozen_base=*/true), 0)
                   .defined());
  EXPECT_TRUE(copy_of(Layer(Options{.compute_type = at::kBFloat16}, /*has_frozen_base=*/true), 1)
                  .defined());
  Layer released;
  released.store.release(Layer::kUnit);
  EXPECT_FALSE(released.store.compute_copy(Layer::kUnit, 0).defined());
}

}  // namespace
}  // namespace strata::optim
