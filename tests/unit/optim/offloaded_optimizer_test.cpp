// Oracle: the same optimizer with everything in memory, to the bit.
#include <fstream>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/comm/mesh.h"
#include "strata/models/registry.h"
#include "strata/optim/make_optimizer.h"
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
      const std::filesystem::path& moments, int64_t sub_group_size,
      const std::string& name = "adamw_torch")
      : model(models::create_model(kModel, {})),
        store(*model, mesh, {.parameter_files = {.folder = parameters}}),
        optimizer(make_optimizer(store, {.name = name,
                                         .weight_decay = 0.1,
                                         .state_files = {.folder = moments},
                                         .sub_group_size = sub_group_size})) {
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
    optimizer->step(1e-2, 0.5);
  }
  std::unique_ptr<models::Model> model;
  shard::UnitStore store;
  std::unique_ptr<Optimizer> optimizer;
};

void expect_equal(Rig& found, Rig& expected) {
  for (int u = 0; u < expected.store.num_units(); ++u) {
    EXPECT_TRUE(at::equal(found.store.home(u, 0).value, expected.store.home(u, 0).value)) << u;
  }
  const auto left = found.optimizer->state(), right = expected.optimizer->state();
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
            if (step == 1) found.optimizer->rehearse();  // changes nothing
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
  auto from = source.optimizer->state(), to = target.optimizer->state();
  for (size_t i = 0; i < from.size(); ++i) to[i].data.copy_(from[i].data);
  for (int u = 0; u < source.store.num_units(); ++u) {
    target.store.home(u, 0).value.copy_(source.store.home(u, 0).value);
  }
  target.optimizer->set_num_steps(2);
  source.step(2);
  target.step(2);
  expect_equal(target, source);
}

// Pages of the file that count as this process's.
int64_t resident_pages(const at::Tensor& view) {
  constexpr uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(view.data_ptr()) / kPage * kPage;
  const auto end = reinterpret_cast<uintptr_t>(view.data_ptr()) + view.nbytes();
  int64_t pages = 0;
  std::ifstream map("/proc/self/pagemap", std::ios::binary);
  for (uintptr_t page = begin; page < end; page += kPage) {
    uint64_t entry = 0;
    map.seekg(static_cast<std::streamoff>(page / kPage * sizeof(entry)));
    map.read(reinterpret_cast<char*>(&entry), sizeof(entry));
    pages += (entry >> 63) & 1;  // present
  }
  return pages;
}

// Their state is in memory; parameters are brought by as AdamW's are.
TEST(OffloadedRules, AreEqualToTheBitWhereverParametersRest) {
  for (const std::string name :
       {"adam", "sgd", "lion_32bit", "lion_8bit", "adamw_8bit", "adafactor"}) {
    for (const int ranks : {1, 2}) {
      comm::Mesh mesh = comm::make_fake_mesh(ranks, ranks);
      // Borders of groups inside of tensors, and inside of what an 8-bit rule takes at once.
      for (const int64_t sub_group_size : {1, 5000, 1 << 24}) {
        SCOPED_TRACE(fmt::format("{} ranks {} groups of {}", name, ranks, sub_group_size));
        TemporaryFolder folder;
        Rig expected(mesh, {}, {}, sub_group_size, name);
        Rig found(mesh, folder.path(), {}, sub_group_size, name);
        for (int step = 0; step < 3; ++step) {
          expected.step(step);
          found.step(step);
          if (step == 1) found.optimizer->rehearse();  // changes nothing
        }
        for (int u = 0; u < found.store.num_units(); ++u) {
          EXPECT_EQ(resident_pages(found.store.home(u, 0).value), 0) << "unit " << u;
        }
        expect_equal(found, expected);
      }
    }
  }
}

}  // namespace
}  // namespace strata::optim
