// Oracle: round trip. A rank that has no memory for its copy saves all the same, and nobody waits
// for ever.
#include "strata/checkpoint/saver.h"

#include <mutex>

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "rank_threads.h"
#include "strata/checkpoint/folders.h"

namespace strata::checkpoint {
namespace {

using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

class SaverWithoutMemory : public ::testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(SaverWithoutMemory, SavesWhileTrainingWaits) {
  const auto [world, in_copy] = GetParam();
  TemporaryFolder folder;
  Rank whole(0, 1);
  const auto weights = fill(whole);
  RankThreads ranks(world);
  std::mutex mutex;
  std::vector<std::string> told;
  ranks.run<std::exception>([&](Rank& rank) {
    fill(rank, weights);
    const bool is_poor = rank.mesh.world->rank() == world - 1;
    int num_copies = 0;
    SaverOptions options;
    if (is_poor) {
      options.take_memory = [](const auto&) -> std::vector<LocalPiece> { throw std::bad_alloc(); };
      options.copy = [&](const auto& pieces, std::vector<LocalPiece> reused) {
        if (in_copy && num_copies++ == 0) throw std::bad_alloc();
        return snapshot(pieces, std::move(reused));
      };
    }
    Saver saver(*rank.store, rank.optimizer.get(), *rank.mesh.world, options);
    for (const int64_t step : {1, 2}) {
      saver.save(
          {.output_dir = folder.path(), .step = step, .num_updates = step, .small_files = {}});
      const auto outcome = saver.wait();
      ASSERT_TRUE(outcome);
      EXPECT_EQ(outcome->failure, "");
      const std::lock_guard lock(mutex);
      if (!outcome->leftover.empty()) told.push_back(outcome->leftover);
    }
  });
  // The poor rank says so once; its second save has memory again.
  ASSERT_EQ(told.size(), in_copy ? 1U : 0U);
  if (in_copy) {
    EXPECT_NE(told[0].find("found no memory for the copy of the state"), std::string::npos)
        << told[0];
  }
  for (const fs::path& saved : list(folder.path())) {
    Rank reader(0, 1);
    PieceReader pieces(saved);
    load(pieces, *reader.store, reader.optimizer.get());
    for (int u = 0; u < reader.store->num_units(); ++u) {
      EXPECT_TRUE(at::equal(reader.store->home(u, 0).value, whole.store->home(u, 0).value));
      EXPECT_TRUE(at::equal(reader.optimizer->moments(u, 0).exp_avg,
                            whole.optimizer->moments(u, 0).exp_avg));
    }
  }
  EXPECT_EQ(list(folder.path()).size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SaverWithoutMemory,
                         ::testing::Values(std::pair(1, true), std::pair(1, false),
                                           std::pair(2, true), std::pair(2, false)));

}  // namespace
}  // namespace strata::checkpoint
