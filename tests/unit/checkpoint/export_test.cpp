// Oracle: the weights that were trained. Rank 0's disk may take longer than a collective of a step
// may wait.
#include "strata/checkpoint/export.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "rank_threads.h"
#include "strata/base/error.h"
#include "troubled_disks.h"

namespace strata::checkpoint {
namespace {

using strata::testing::SlowDisk;
using strata::testing::TemporaryFolder;

class ExportToASlowDisk : public ::testing::TestWithParam<bool> {};

TEST_P(ExportToASlowDisk, TakesTheTimeOfTheGroupThatWaitsForIt) {
  const bool is_patient = GetParam();
  TemporaryFolder folder;
  Rank whole(0, 1);
  const auto weights = fill(whole);
  RankThreads ranks(2, /*shared_memory=*/false, /*shard_size=*/0, std::chrono::seconds(1));
  const auto run = [&] {
    ranks.run<CommError>([&](Rank& rank) {
      fill(rank, weights);
      const int own = rank.mesh.world->rank();
      SlowDisk files(own == 0);
      const auto group = ranks.make_group(own, std::chrono::seconds(60));
      ExportOptions options{.files = &files};
      if (is_patient) options.group = group.get();
      export_model(
          folder.path(), *rank.store, UINT64_MAX,
          [](const nn::Parameter& parameter) { return parameter.name(); }, std::move(options));
    });
  };
  if (!is_patient) {
    EXPECT_THROW(run(), CommError);
    return;
  }
  run();
  const hf::SafetensorsFile saved(folder / "model.safetensors");
  EXPECT_EQ(saved.tensors().size(), weights.size());
  for (const auto& [name, expected] : weights) {
    const hf::TensorInfo* info = saved.find(name);
    ASSERT_NE(info, nullptr) << name;
    const auto bytes = saved.bytes(*info);
    ASSERT_EQ(bytes.size(), expected.nbytes());
    EXPECT_EQ(std::memcmp(bytes.data(), expected.contiguous().data_ptr(), bytes.size()), 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, ExportToASlowDisk, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Patient" : "World");
});

}  // namespace
}  // namespace strata::checkpoint
