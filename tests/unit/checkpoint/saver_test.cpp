// Oracle: round trip. A rank that has no memory for its copy saves all the same, one that cannot
// save at all fails the save and not the run, and nobody waits for ever.
#include "strata/checkpoint/saver.h"

#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "../optim/lost_group.h"
#include "../temporary_folder.h"
#include "rank_threads.h"
#include "strata/checkpoint/folders.h"
#include "troubled_disks.h"

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

// A collective that was ended may have left something else than the weights of this step.
TEST(SaverOfALostGroup, WritesNothing) {
  for (const bool in_background : {true, false}) {
    TemporaryFolder folder;
    auto group = std::make_unique<optim::LostGroup>();
    optim::LostGroup& shard = *group;
    Rank rank(comm::make_single_group(), std::move(group));
    Saver saver(*rank.store, rank.optimizer.get(), *rank.mesh.world,
                {.in_background = in_background, .total_limit = {}});
    shard.is_lost = true;
    EXPECT_THROW(
        saver.save({.output_dir = folder.path(), .step = 1, .num_updates = 1, .small_files = {}}),
        CommError);
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

class SaverOfALateRank : public ::testing::TestWithParam<bool> {};

// The others give up, that rank goes on: all agree on what came of it, and go on saving in step.
TEST_P(SaverOfALateRank, SavesWhileTrainingWaitsFromThenOn) {
  TemporaryFolder folder;
  Rank whole(0, 1);
  const auto weights = fill(whole);
  RankThreads ranks(2, GetParam());
  ranks.run<std::exception>([&](Rank& rank) {
    fill(rank, weights);
    const bool is_late = rank.mesh.world->rank() == 1;
    strata::testing::SlowDisk files(is_late);
    SaverOptions options;
    options.files = &files;
    const auto brief = ranks.make_group(rank.mesh.world->rank(), std::chrono::seconds(1));
    Saver saver(*rank.store, rank.optimizer.get(), *brief, options);
    std::vector<SaveOutcome> outcomes;
    for (const int64_t step : {1, 2, 3}) {
      const auto before = saver.save(
          {.output_dir = folder.path(), .step = step, .num_updates = step, .small_files = {}});
      EXPECT_EQ(before.has_value(), step > 1);
      if (before) outcomes.push_back(*before);
      EXPECT_EQ(saver.has_lost_group(), step > 1);
    }
    outcomes.push_back(saver.wait().value());
    EXPECT_NE(outcomes[0].failure, "");
    EXPECT_NE(outcomes[0].leftover.find("from now on training waits for saves"), std::string::npos)
        << outcomes[0].leftover;
    for (size_t i : {1, 2}) {
      EXPECT_EQ(outcomes[i].failure, "");
      EXPECT_EQ(outcomes[i].leftover, "");
      EXPECT_EQ(outcomes[i].stall.copying, 0);
    }
    // One collective too many or too few on some rank would show in the next.
    at::Tensor sum = at::full({1}, rank.mesh.world->rank() + 1, at::kInt);
    rank.mesh.world->all_reduce(sum)->wait();
    EXPECT_EQ(sum.item<int>(), 3);
  });
  const std::vector<fs::path> saved = list(folder.path());
  ASSERT_EQ(saved.size(), 2U);
  for (const fs::path& path : saved) PieceReader(path).verify_all();
}

// An optimizer that cannot say its state once, as where memory is short.
class FailsOnce : public optim::Optimizer {
 public:
  explicit FailsOnce(optim::Optimizer& inner) : inner_(inner) {}
  void step(double, double) override {}
  std::vector<optim::StateTensor> state() override {
    if (std::exchange(fails, false)) throw std::runtime_error("no state for once");
    return inner_.state();
  }

  bool fails = false;

 private:
  optim::Optimizer& inner_;
};

struct Failing {
  int rank;  // of two
  bool in_background;
  bool in_completion;  // of the request; else in the collection of the state
  bool over_tcp = false;
};

class SaverOfARankThatFails : public ::testing::TestWithParam<Failing> {};

TEST_P(SaverOfARankThatFails, LosesThatSaveAndNothingElse) {
  const Failing row = GetParam();
  TemporaryFolder folder;
  Rank whole(0, 1);
  const auto weights = fill(whole);
  RankThreads ranks(2, /*shared_memory=*/!row.over_tcp);
  ranks.run<std::exception>([&](Rank& rank) {
    fill(rank, weights);
    const bool is_it = rank.mesh.world->rank() == row.rank;
    FailsOnce optimizer(*rank.optimizer);
    SaverOptions options;
    options.in_background = row.in_background;
    const auto group = ranks.make_group(rank.mesh.world->rank(), std::chrono::seconds(60));
    Saver saver(*rank.store, &optimizer, *group, options);
    for (const int64_t step : {1, 2, 3}) {
      const bool fails = is_it && step == 2;
      optimizer.fails = fails && !row.in_completion;
      saver.save({.output_dir = folder.path(), .step = step, .num_updates = step}, {},
                 [&](SaveRequest& request) {
                   if (fails && row.in_completion) throw std::runtime_error("no state for once");
                   request.small_files["progress.json"] = std::to_string(request.step);
                 });
      const auto outcome = saver.wait();
      ASSERT_TRUE(outcome);
      EXPECT_EQ(outcome->failure,
                step == 2 ? fmt::format("rank {}: no state for once", row.rank) : "");
      EXPECT_EQ(outcome->leftover, "");
      EXPECT_FALSE(saver.has_lost_group());
    }
  });
  const std::vector<fs::path> saved = list(folder.path());
  ASSERT_EQ(saved.size(), 2U);
  for (const fs::path& path : saved) {
    PieceReader(path).verify_all();
    EXPECT_EQ(PieceReader(path).small_file("progress.json"), std::to_string(step_of(path)));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SaverOfARankThatFails,
                         ::testing::Values(Failing{0, true, true}, Failing{1, true, true},
                                           Failing{0, true, false}, Failing{1, true, false},
                                           Failing{0, false, true}, Failing{1, false, true},
                                           Failing{0, false, false}, Failing{1, false, false},
                                           Failing{1, true, false, true}));

// Memory for the first copy is taken when nothing is saved yet.
TEST(Saver, AStateThatCannotBeHadAtFirstIsAskedForAgain) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  FailsOnce optimizer(*rank.optimizer);
  optimizer.fails = true;
  Saver saver(*rank.store, &optimizer, *rank.mesh.world, {});
  EXPECT_FALSE(optimizer.fails);
  saver.save({.output_dir = folder.path(), .step = 1, .num_updates = 1});
  EXPECT_EQ(saver.wait()->failure, "");
  EXPECT_EQ(list(folder.path()).size(), 1U);
}

// `latest` would name what is gone.
TEST(Saver, NothingIsRemovedWhileLatestCannotBeWritten) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  strata::testing::RefusesLatest files;
  SaverOptions options;
  options.total_limit = 1;
  options.files = &files;
  Saver saver(*rank.store, rank.optimizer.get(), *rank.mesh.world, options);
  for (const int64_t step : {1, 2, 3, 4}) {
    files.refuses = step == 2 || step == 3;
    saver.save({.output_dir = folder.path(), .step = step, .num_updates = step});
    const auto outcome = saver.wait();
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->failure, "");
    EXPECT_EQ(outcome->leftover.find("no space left") != std::string::npos, files.refuses)
        << outcome->leftover;
    EXPECT_EQ(list(folder.path()).size(), files.refuses ? static_cast<size_t>(step) : 1U);
    EXPECT_EQ(candidates("true", folder.path()).front(), folder_of(folder.path(), step));
  }
}

struct RefusesRemoval : FileSystem {
  int remove(const std::filesystem::path& path) override {
    return path.string().ends_with(".tmp-removed") ? EACCES : FileSystem::remove(path);
  }
};

TEST(Saver, OlderOnesGoByTheFileSystemThatItIsGiven) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  RefusesRemoval files;
  SaverOptions options;
  options.total_limit = 1;
  options.files = &files;
  Saver saver(*rank.store, rank.optimizer.get(), *rank.mesh.world, options);
  for (const int64_t step : {1, 2}) {
    saver.save({.output_dir = folder.path(), .step = step, .num_updates = step});
    const auto outcome = saver.wait();
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->failure, "");
    EXPECT_EQ(outcome->leftover.find("(save_total_limit)") != std::string::npos, step == 2)
        << outcome->leftover;
  }
}

// Only the loss of the next step would show it, when the good state is gone.
TEST(Saver, NothingIsRemovedForWeightsThatAreNotFinite) {
  TemporaryFolder folder;
  Rank whole(0, 1);
  const auto weights = fill(whole);
  RankThreads ranks(2);
  ranks.run<std::exception>([&](Rank& rank) {
    const int own = rank.mesh.world->rank();
    SaverOptions options;
    options.total_limit = 1;
    const auto group = ranks.make_group(own, std::chrono::seconds(60));
    Saver saver(*rank.store, rank.optimizer.get(), *group, options);
    for (const int64_t step : {1, 2, 3}) {
      fill(rank, weights);
      // Another one than rank 0 has them.
      if (step == 2 && own == 1) rank.store->home(1, 0).value.narrow(0, 3, 1).fill_(NAN);
      if (step == 3) rank.store->home(1, 0).value.fill_(3e38);
      saver.save({.output_dir = folder.path(), .step = step, .num_updates = step});
      const auto outcome = saver.wait();
      ASSERT_TRUE(outcome);
      EXPECT_EQ(outcome->failure, "");
      EXPECT_EQ(outcome->leftover,
                step == 2 && own == 0
                    ? "checkpoint-2 holds weights that are not known to be finite; older ones stay"
                    : "");
      if (own != 0) continue;
      EXPECT_EQ(list(folder.path()).size(), step == 2 ? 2U : 1U);
    }
  });
}

// What is told while training goes on is told once, and is still there to be taken note of.
TEST(Saver, WhatIsToldEarlyIsStillReturned) {
  class FullDisk : public FileSystem {
   public:
    int create(const fs::path&) override { return -ENOSPC; }
  };
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  FullDisk files;
  SaverOptions options;
  options.files = &files;
  Saver saver(*rank.store, rank.optimizer.get(), *rank.mesh.world, options);
  saver.save({.output_dir = folder.path(), .step = 1, .num_updates = 1, .small_files = {}});
  std::optional<SaveOutcome> told;
  while (!told) told = saver.poll();
  EXPECT_NE(told->failure.find("no space left"), std::string::npos) << told->failure;
  EXPECT_FALSE(saver.poll());
  const auto outcome = saver.wait();
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->is_told);
  EXPECT_EQ(outcome->failure, told->failure);
  EXPECT_FALSE(saver.wait());
  EXPECT_FALSE(saver.has_lost_group());
}

INSTANTIATE_TEST_SUITE_P(Transports, SaverOfALateRank, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "SharedMemory" : "Tcp");
});

}  // namespace
}  // namespace strata::checkpoint
