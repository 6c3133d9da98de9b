// Oracle: the same store with its homes in memory; the bytes of the file itself.
#include "strata/shard/home_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/comm/mesh.h"
#include "strata/models/registry.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

using strata::testing::TemporaryFolder;

const Json kModel{
    {"model_type", "llama"},        {"vocab_size", 37},       {"hidden_size", 20},
    {"intermediate_size", 28},      {"num_hidden_layers", 3}, {"num_attention_heads", 2},
    {"num_key_value_heads", 1},     {"head_dim", 10},         {"tie_word_embeddings", false},
    {"max_position_embeddings", 64}};

TEST(HomeFile, TransfersAndViewsSeeTheSameBytes) {
  TemporaryFolder folder;
  constexpr int64_t kNumel = 5000;
  HomeFile file({.folder = folder.path()}, "f", 2 * HomeFile::size_bytes(kNumel, at::kFloat));
  const FileRegion first = file.add(kNumel, at::kFloat);
  const FileRegion second = file.add(kNumel, at::kFloat);
  EXPECT_TRUE(at::equal(file.view(first), at::zeros({kNumel})));
  const at::Tensor value = at::randn({kNumel});
  for (int round = 0; round < 3; ++round) {
    // Written through the view, read by a transfer.
    file.view(second).copy_(value + round);
    at::Tensor buffer = aligned_buffer(kNumel, at::kFloat);
    file.wait(file.read(second, 0, buffer));
    EXPECT_TRUE(at::equal(buffer, value + round));
    // Written by a transfer, seen in the view, which is in memory already.
    buffer.mul_(2);
    file.wait(file.write(second, 0, buffer));
    EXPECT_TRUE(at::equal(file.view(second), (value + round) * 2));
    if (round == 1) file.forget_pages();
  }
  at::Tensor part = aligned_buffer(1024, at::kFloat);
  file.wait(file.read(second, 2048, part));
  EXPECT_TRUE(at::equal(part, file.view(second).narrow(0, 2048, 1024)));
  EXPECT_TRUE(at::equal(file.view(first), at::zeros({kNumel}))) << "a neighbour changed";
  EXPECT_THROW(file.add(1, at::kFloat), InternalError);
}

TEST(HomeFile, GoesWithItsOwner) {
  TemporaryFolder folder;
  at::Tensor view;
  {
    HomeFile file({.folder = folder.path()}, "f", 4096);
    view = file.view(file.add(8, at::kFloat));
    view.fill_(3);
    EXPECT_TRUE(std::filesystem::exists(folder / "f"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "f"));
  EXPECT_EQ(view.sum().item<float>(), 24) << "a view outlives the file's name";
}

struct Case {
  at::ScalarType storage, compute;
  int ranks;
};

class FileStore : public ::testing::TestWithParam<Case> {};

// Visits in the order of a schedule that reads ahead, even while an earlier visit is not over.
TEST_P(FileStore, GathersWhatAStoreInMemoryGathers) {
  const Case& row = GetParam();
  TemporaryFolder folder;
  comm::Mesh mesh = comm::make_fake_mesh(row.ranks, row.ranks);
  auto in_memory = models::create_model(kModel, {.storage = row.storage});
  auto in_file = models::create_model(kModel, {.storage = row.storage});
  UnitStore expected(*in_memory, mesh, {.compute_type = row.compute});
  UnitStore found(*in_file, mesh,
                  {.compute_type = row.compute, .parameter_files = {.folder = folder.path()}});
  ASSERT_NE(found.file(), nullptr);
  const auto left = in_memory->parameters(), right = in_file->parameters();
  for (size_t i = 0; i < left.size(); ++i) {
    const at::Tensor value = at::randn(left[i]->shape());
    place_tensor(expected, *left[i], value);
    place_tensor(found, *right[i], value);
  }
  const std::vector<int> order{0, 1, 2, 3, 4, 4, 3, 2, 1, 0};
  int64_t allocations = 0;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < order.size(); ++i) {
      const int u = order[i];
      expected.gather(u);
      found.gather(u);
      if (i + 1 < order.size()) found.start_read(order[i + 1]);
      expected.wait_gather(u);
      found.wait_gather(u);
      for (size_t s = 0; s < expected.unit(u).segments.size(); ++s) {
        const auto& left = expected.unit(u).segments[s].extents;
        const auto& right = found.unit(u).segments[s].extents;
        for (size_t e = 0; e < left.size(); ++e) {
          EXPECT_TRUE(at::equal(left[e].parameter->value(), right[e].parameter->value()))
              << left[e].parameter->name();
        }
      }
      expected.release(u);
      found.release(u);
    }
    if (round == 1) allocations = found.pool().num_allocations();
  }
  EXPECT_EQ(found.pool().num_allocations(), allocations);
}

INSTANTIATE_TEST_SUITE_P(Types, FileStore,
                         ::testing::Values(Case{at::kFloat, at::kFloat, 1},
                                           Case{at::kFloat, at::kFloat, 3},
                                           Case{at::kBFloat16, at::kFloat, 1},
                                           Case{at::kBFloat16, at::kFloat, 2},
                                           Case{at::kFloat, at::kBFloat16, 2}));

TEST(FileStore, AFullDiskIsAnErrorBeforeAnythingIsAllocated) {
  // Parameters hold no memory until they are gathered: a model far beyond any disk can be
  // described.
  Json huge = kModel;
  huge["hidden_size"] = 1 << 20;
  huge["intermediate_size"] = 1 << 22;
  huge["num_hidden_layers"] = 100;
  TemporaryFolder folder;
  auto model = models::create_model(huge, {});
  comm::Mesh mesh = comm::make_fake_mesh(1, 1);
  EXPECT_THROW(UnitStore(*model, mesh, {.parameter_files = {.folder = folder.path()}}), IoError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace strata::shard
