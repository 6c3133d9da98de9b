// Oracle: the tensors that were sent, to the bit; the same training step with its inputs kept.
#include "strata/shard/activation_home.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/comm/mesh.h"
#include "strata/models/registry.h"
#include "strata/shard/executor.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

using strata::testing::TemporaryFolder;
using Place = ActivationHomeOptions::Place;
using Backend = FileQueueOptions::Backend;

TEST(ActivationHome, FilesGiveBackWhatWasSent) {
  for (const Backend backend : {Backend::kAutomatic, Backend::kThreads}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      TemporaryFolder folder;
      ActivationHome home(at::kCPU, {1, 2, 3},
                          {.place = Place::kFiles,
                           .files = {.folder = folder.path(), .queue = {.backend = backend}},
                           .reserved_bytes = 5000});
      // Micro-batches of other sizes, two of them beyond what was reserved.
      for (const int64_t rows : {3, 50, 7, 400, 60}) {
        std::vector<at::Tensor> inputs{at::Tensor()};
        for (int block = 1; block <= 3; ++block) {
          inputs.push_back(at::randn({rows, 23}).to(type));
          EXPECT_FALSE(home.holds(block));
          home.send(block, inputs.back().clone());
          EXPECT_TRUE(home.holds(block));
        }
        home.fetch(3);
        for (int block = 3; block >= 1; --block) {
          if (block > 1) home.fetch(block - 1);
          EXPECT_TRUE(at::equal(home.take(block), inputs[static_cast<size_t>(block)]));
        }
        EXPECT_FALSE(home.holds(1));
      }
      EXPECT_FALSE(home.holds(0));
      EXPECT_THROW(home.send(4, at::ones({1})), InternalError);
    }
  }
}

TEST(ActivationHome, AFullDiskIsAnErrorOnStart) {
  TemporaryFolder folder;
  const ActivationHomeOptions options{.place = Place::kFiles,
                                      .files = {.folder = folder.path()},
                                      .reserved_bytes = uint64_t{1} << 50};
  EXPECT_THROW(ActivationHome(at::kCPU, {1}, options), IoError);
}

const Json kModel{
    {"model_type", "llama"},        {"vocab_size", 37},       {"hidden_size", 20},
    {"intermediate_size", 28},      {"num_hidden_layers", 5}, {"num_attention_heads", 2},
    {"num_key_value_heads", 1},     {"head_dim", 10},         {"tie_word_embeddings", false},
    {"max_position_embeddings", 64}};

nn::Batch batch_of(int64_t tokens) {
  nn::Batch batch;
  batch.offsets = {0, tokens / 2, tokens};
  batch.ids = at::arange(tokens, at::kLong).remainder(37);
  batch.targets = batch.ids.clone();
  batch.positions = at::arange(tokens, at::kLong);
  batch.token_keys = at::arange(tokens, at::kLong);
  return batch;
}

// Gradients of all units after micro-batches of two lengths.
std::vector<at::Tensor> gradients(bool offloads, bool frozen_start,
                                  const ActivationHomeOptions& to) {
  comm::Mesh mesh = comm::make_fake_mesh(1, 1);
  const auto model = models::create_model(kModel, {});
  at::Generator generator = at::detail::createCPUGenerator(7);
  for (nn::Parameter* parameter : model->parameters()) {
    const bool is_first = parameter->name().find("layers.0.") != std::string::npos ||
                          parameter->name().find("embed") != std::string::npos;
    parameter->set_requires_grad(!frozen_start || !is_first);
  }
  UnitStore store(*model, mesh, {});
  for (nn::Parameter* parameter : model->parameters()) {
    place_tensor(store, *parameter, at::randn(parameter->shape(), generator).mul_(0.3));
  }
  ScheduleOptions options;
  options.offload_activations = offloads;
  Executor executor(*model, store, build_schedules(shape_of(*model, store.partition()), options),
                    to);
  nn::LossSums sums;
  nn::ForwardContext context;
  context.training = true;
  context.head.sums = &sums;
  for (const int64_t tokens : {11, 40}) {
    executor.train(batch_of(tokens), context, tokens == 11, tokens == 40);
  }
  std::vector<at::Tensor> found;
  for (int u = 0; u < store.num_units(); ++u) {
    for (size_t s = 0; s < store.unit(u).segments.size(); ++s) {
      const at::Tensor& gradient = store.home(u, static_cast<int>(s)).gradient;
      if (gradient.defined()) found.push_back(gradient.clone());
    }
  }
  return found;
}

TEST(Executor, InputsInFilesChangeNoBit) {
  for (const bool frozen_start : {false, true}) {
    TemporaryFolder folder;
    const auto expected = gradients(false, frozen_start, {});
    const auto found = gradients(
        true, frozen_start,
        {.place = Place::kFiles, .files = {.folder = folder.path()}, .reserved_bytes = 4096});
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_GT(expected[i].abs().max().item<float>(), 0);
      EXPECT_TRUE(at::equal(found[i], expected[i]));
    }
  }
}

}  // namespace
}  // namespace strata::shard
