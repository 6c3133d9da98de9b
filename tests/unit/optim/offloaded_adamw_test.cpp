// Oracle: the same optimizer with everything in memory, to the bit.
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/comm/mesh.h"
#include "strata/models/registry.h"
#include "strata/optim/adamw.h"
#include "strata/shard/loading.h"

namespace strata::optim {
namespace {

using strata::testing::TemporaryFolder;

const Json kModel{{"model_type", "llama"},    {"vocab_size", 37},       {"hidden_size", 64},
                  {"intermediate_size", 200}, {"num_hidden_layers", 2}, {"num_attention_heads", 2},
                  {"num_key_value_heads", 1}, {"head_dim", 10}};

// A model whose parameters, and an optimizer whose moments, rest where the test says.
struct Rig {
  Rig(comm::Mesh& mesh, const std::filesystem::path& parameters,
      const std::filesystem::path& moments, int64_t sub_group_size)
      : model(models::create_model(kModel, {})),
        store(*model, mesh, {.parameter_files = {.folder = parameters}}),
        optimizer(store, {.weight_decay = 0.1,
                          .state_files = {.folder = moments},
                          .sub_group_size = sub_group_size}) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    for (nn::Parameter* parameter : model->parameters()) {
      place_tensor(store, *parameter, at::randn(parameter->shape(), generator));
    }
  }
  void step(int number) {
    at::Generator generator = at::detail::createCPUGenerator(100 + number);
    for (int u = 0; u < store.num_units(); ++u) {
      at::Tensor& gradient = store.home(u, 0).gradient;
      gradient.copy_(at::randn(gradient.sizes(), generator));
    }
    optimizer.step(1e-2, 0.5);
  }
  std::unique_ptr<models::Model> model;
  shard::UnitStore store;
  AdamW optimizer;
};

void expect_equal(Rig& found, Rig& expected) {
  for (int u = 0; u < expected.store.num_units(); ++u) {
    EXPECT_TRUE(at::equal(found.store.home(u, 0).value, expected.store.home(u, 0).value)) << u;
  }
  const auto left = found.optimizer.state(), right = expected.optimizer.state();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].parameter->name(), right[i].parameter->name());
    EXPECT_TRUE(at::equal(left[i].data, right[i].data)) << left[i].name;
  }
}

TEST(OffloadedAdamW, IsEqualToTheBitWhereverThingsRest) {
  for (const int ranks : {1, 2}) {
    comm::Mesh mesh = comm::make_fake_mesh(ranks, ranks);
    for (const bool parameters : {false, true}) {
      for (const bool moments : {false, true}) {
        // One element becomes the smallest group; 20000 leaves a short last one.
        for (const int64_t sub_group_size : {1, 20000, 1 << 24}) {
          TemporaryFolder one, two;
          Rig expected(mesh, {}, {}, sub_group_size);
          Rig found(mesh, parameters ? one.path() : "", moments ? two.path() : "", sub_group_size);
          for (int step = 0; step < 3; ++step) {
            expected.step(step);
            found.step(step);
            if (step == 1) found.optimizer.rehearse();  // changes nothing
          }
          SCOPED_TRACE(fmt::format("ranks {} parameters {} moments {} groups of {}", ranks,
                                   parameters, moments, sub_group_size));
          expect_equal(found, expected);
        }
      }
    }
  }
}

TEST(OffloadedAdamW, StateThatIsWrittenThroughViewsCounts) {
  TemporaryFolder one, two;
  comm::Mesh mesh = comm::make_fake_mesh(1, 1);
  Rig source(mesh, {}, {}, 4096), target(mesh, one.path(), two.path(), 4096);
  source.step(0);
  source.step(1);
  target.step(0);
  // As resuming does: homes and moments are overwritten between steps.
  auto from = source.optimizer.state(), to = target.optimizer.state();
  for (size_t i = 0; i < from.size(); ++i) to[i].data.copy_(from[i].data);
  for (int u = 0; u < source.store.num_units(); ++u) {
    target.store.home(u, 0).value.copy_(source.store.home(u, 0).value);
  }
  target.optimizer.set_num_steps(2);
  source.step(2);
  target.step(2);
  expect_equal(target, source);
}

}  // namespace
}  // namespace strata::optim
