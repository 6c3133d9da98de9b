// Oracle: the old and the new state. Whatever operation of a save goes wrong, and whatever of the
// unsynced ones reached the disk, a reader finds one of the two whole.
#include <unistd.h>

#include <algorithm>

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "crash_loop.h"
#include "rank_threads.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/repair.h"
#include "strata/checkpoint/sharded.h"
#include "troubled_disks.h"

namespace strata::checkpoint {
namespace {

using strata::testing::Crash;
using strata::testing::CrashDisk;
using strata::testing::for_each_crash;
using strata::testing::memory_or_disk;
using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

strata::testing::Unsynced unsynced;

// What a run does to its folder: a new checkpoint, then the removal of the old one.
struct Change {
  const char* name;
  int64_t step;  // of the new one; the old one's is 1
  bool is_whole = false;
  int num_ranks = 1;
  StreamedFrom streamed = {};
  int num_variants = 3;  // of what a loss of power leaves: nothing unsynced, all, drawn parts
  bool can_exchange = true;
};

// What a save writes and a restart must find.
class State {
 public:
  explicit State(int num_ranks) : ranks_(num_ranks), reader_(0, 1) {}

  // What went wrong behind the rename.
  AfterSave save(const fs::path& output, double value, FileSystem& files, const Change& change) {
    AfterSave after;
    ranks_.run<IoError>([&](Rank& rank) {
      set(rank, value);
      SaveRequest request{.output_dir = output,
                          .step = change.step,
                          .num_updates = change.step,
                          .small_files = {{"progress.json", std::to_string(value)},
                                          {"below/more.txt", std::to_string(value)}}};
      if (change.is_whole) request.whole = whole_files(rank);
      request.streamed = change.streamed;
      if (rank.mesh.world->rank() == 0) request.after = &after;
      write_checkpoint(request, local_pieces(*rank.store, rank.optimizer.get()), role_of(rank.mesh),
                       *rank.mesh.world, files);
    });
    return after;
  }
  // The state of the newest whole checkpoint, as resuming takes it. Fails the test for a mixture.
  double resume(const fs::path& output) {
    set(reader_, -1);
    num_finished_ += finish_interrupted(output, unsynced).size();
    const std::vector<fs::path> found = candidates("true", output);
    PieceReader pieces(found.front());
    load(pieces, *reader_.store, reader_.optimizer.get());
    const double value = std::stod(pieces.small_file("progress.json"));
    EXPECT_EQ(std::stod(pieces.small_file("below/more.txt")), value);
    for (int u = 0; u < reader_.store->num_units(); ++u) {
      for (const shard::Piece& piece : pieces_of(reader_.store->unit(u).segments[0], 0)) {
        const auto all = [&](const at::Tensor& flat, double expected) {
          return (flat.narrow(0, piece.shard_begin, piece.length) == expected).all().item<bool>();
        };
        EXPECT_TRUE(all(reader_.store->home(u, 0).value, value)) << piece.parameter->name();
        EXPECT_TRUE(all(reader_.optimizer->moments(u, 0).exp_avg, value * 2));
        EXPECT_TRUE(all(reader_.optimizer->moments(u, 0).exp_avg_sq, value * 3));
      }
    }
    return value;
  }

  // Checkpoints that resume() found without their name.
  size_t num_finished() const { return num_finished_; }

 private:
  static void set(Rank& rank, double value) {
    for (int u = 0; u < rank.store->num_units(); ++u) {
      rank.store->home(u, 0).value.fill_(value);
      rank.optimizer->moments(u, 0).exp_avg.fill_(value * 2);
      rank.optimizer->moments(u, 0).exp_avg_sq.fill_(value * 3);
    }
  }

  RankThreads ranks_;
  Rank reader_;
  size_t num_finished_ = 0;
};

constexpr double kOld = 1, kNew = 2;

// Some blocks a rank, so that full, first and last ones are among them.
constexpr StreamedFrom kSmallBlocks{.bytes = 0, .block_bytes = 16384};
constexpr Change kChanges[] = {
    {.name = "New", .step = 2, .num_variants = 6},
    {.name = "Again", .step = 1, .num_variants = 6},
    {.name = "Whole", .step = 2, .is_whole = true},
    {.name = "Streamed", .step = 2, .streamed = kSmallBlocks},
    {.name = "WholeStreamed", .step = 2, .is_whole = true, .streamed = kSmallBlocks},
    {.name = "TwoRanks", .step = 2, .num_ranks = 2},
    {.name = "TwoRanksStreamed", .step = 1, .num_ranks = 2, .streamed = kSmallBlocks},
    {.name = "TwoRanksWhole",
     .step = 2,
     .is_whole = true,
     .num_ranks = 2,
     .streamed = kSmallBlocks},
    {.name = "AgainByTwoRenames", .step = 1, .num_variants = 4, .can_exchange = false}};
constexpr Change kOldSave{.name = "Old", .step = 1};
constexpr Change kNextSave{.name = "Next", .step = 3};

enum class Claim { kNotSaved, kInPlace, kDurable };

// The new checkpoint over the old one. Answers what the save said that it came to.
Claim save_over(State& state, const fs::path& folder, const Change& change, CrashDisk& files) {
  AfterSave after;
  try {
    after = state.save(folder, kNew, files, change);
  } catch (const IoError&) {
    return Claim::kNotSaved;
  }
  EXPECT_TRUE(after.is_in_place);
  if (!after.is_durable) return Claim::kInPlace;
  if (!after.replaces_older()) return Claim::kDurable;
  try {
    rotate(folder, 1, {}, files);
  } catch (const IoError&) {
    // What was saved is safe.
  }
  return Claim::kDurable;
}

// Writes past the page cache need a disk.
fs::path place_of(const Change& change) {
  return change.streamed.bytes == 0 ? fs::temp_directory_path() : memory_or_disk();
}

int count_named(const fs::path& folder, const std::string& part) {
  return static_cast<int>(std::count_if(
      fs::directory_iterator(folder), fs::directory_iterator(), [&](const auto& entry) {
        return entry.path().filename().string().find(part) != std::string::npos;
      }));
}

class Faults : public ::testing::TestWithParam<Change> {
 protected:
  using Judge = std::function<void(const Crash&, Claim)>;

  // Every operation of saving the new state over the old one, and of removing that.
  int break_saves(CrashDisk::Fault fault, const Judge& judge) {
    const Change& change = GetParam();
    return for_each_crash(
        {fault, change.num_variants, change.can_exchange, place_of(change)},
        [&](const TemporaryFolder& folder) {
          state_.save(folder.path(), kOld, unsynced, kOldSave);
        },
        [&](const fs::path& folder, CrashDisk& files) {
          const Claim claim = save_over(state_, folder, change, files);
          is_last_whole_ = claim == Claim::kDurable && list(folder).size() == 1;
          return claim;
        },
        judge);
  }

  State state_{GetParam().num_ranks};
  bool is_last_whole_ = false;  // of the save at which nothing went wrong, which is the last
};

TEST_P(Faults, ALossOfPowerAtEveryOperationLeavesTheOldOrTheNewState) {
  int num_old = 0, num_new = 0;
  const auto judge = [&](const Crash& crash, Claim claim) {
    const double found = state_.resume(crash.left);
    EXPECT_TRUE(found == kOld || found == kNew) << found << " at operation " << crash.at;
    EXPECT_TRUE(claim != Claim::kDurable || found == kNew)
        << "a reported save is gone, operation " << crash.at;
    ++(found == kOld ? num_old : num_new);
    if (crash.variant > 2) return;
    // The next run saves into what the crash left.
    state_.save(crash.left, kNew + 1, unsynced, kNextSave);
    EXPECT_EQ(state_.resume(crash.left), kNew + 1);
    EXPECT_EQ(count_named(crash.left, ".replaced-"), 0);
  };
  EXPECT_GT(break_saves(CrashDisk::Fault::kPowerLoss, judge), 30);
  EXPECT_TRUE(is_last_whole_);
  // The moment between two renames was among those points.
  EXPECT_EQ(state_.num_finished() > 0, !GetParam().can_exchange);
  EXPECT_GT(num_old, 0);
  EXPECT_GT(num_new, 0);
}

TEST_P(Faults, AFailureOfEveryOperationLeavesTheOldOrTheNewState) {
  int num_in_doubt = 0;
  const auto judge = [&](const Crash& crash, Claim claim) {
    // It says what is so: a save that failed has left everything as it was.
    const double found = state_.resume(crash.left);
    EXPECT_EQ(found, claim == Claim::kNotSaved ? kOld : kNew) << "at operation " << crash.at;
    num_in_doubt += claim == Claim::kInPlace;
    for (const bool is_kept : {false, true}) {
      if (claim != Claim::kInPlace) break;
      TemporaryFolder after(memory_or_disk());  // a loss of power takes the name away, or does not
      crash.files.restore(after.path(), [&] { return is_kept; });
      const double left = state_.resume(after.path());
      EXPECT_TRUE(left == kOld || left == kNew) << left << " at operation " << crash.at;
    }
    crash.files.break_at(0, CrashDisk::Fault::kNone);
    state_.save(crash.left, kNew + 1, crash.files, kNextSave);
    EXPECT_EQ(state_.resume(crash.left), kNew + 1);
  };
  for (const auto fault : {CrashDisk::Fault::kError, CrashDisk::Fault::kShortWrite}) {
    EXPECT_GT(break_saves(fault, judge), 30);
    EXPECT_TRUE(is_last_whole_);
  }
  EXPECT_EQ(num_in_doubt, 2);  // the sync behind the rename, by either fault
}

// A folder as a crash left it, and the crash that comes while it is mended: whatever of that is
// lost, mending it again finds what mending it at once would have.
class Repairs {
 public:
  explicit Repairs(State& state) : state_(state) {}

  void try_all(const fs::path& left) {
    const auto copy = [&](const TemporaryFolder& folder) {
      fs::copy(left, folder.path(), fs::copy_options::recursive);
    };
    TemporaryFolder whole(memory_or_disk());
    copy(whole);
    CrashDisk counting(whole.path());
    finish_interrupted(whole.path(), counting);
    if (counting.num_operations() == 0) return;  // nothing to mend
    const double expected = state_.resume(whole.path());
    const auto mend = [&](const fs::path& folder, FileSystem& files) {
      try {
        finish_interrupted(folder, files);
        return true;
      } catch (const IoError&) {
        ++num_broken_;
        return false;
      }
    };
    for (const auto fault : {CrashDisk::Fault::kPowerLoss, CrashDisk::Fault::kError}) {
      for_each_crash({.fault = fault}, copy, mend, [&](const Crash& crash, bool) {
        EXPECT_EQ(state_.resume(crash.left), expected) << "at operation " << crash.at;
      });
    }
  }
  int num_broken() const { return num_broken_; }

 private:
  State& state_;
  int num_broken_ = 0;
};

TEST(RepairFaults, ACrashAtEveryOperationOfARepairAfterACrashAtEveryOperationOfASave) {
  // Only a file system without exchange leaves anything to mend.
  constexpr Change kAgain{.name = "Again", .step = 1, .can_exchange = false};
  State state(1);
  Repairs repairs(state);
  for_each_crash(
      {.fault = CrashDisk::Fault::kPowerLoss, .can_exchange = false},
      [&](const TemporaryFolder& folder) { state.save(folder.path(), kOld, unsynced, kOldSave); },
      [&](const fs::path& folder, CrashDisk& files) {
        return save_over(state, folder, kAgain, files);
      },
      [&](const Crash& crash, Claim) { repairs.try_all(crash.left); });
  EXPECT_GT(repairs.num_broken(), 0);
}

INSTANTIATE_TEST_SUITE_P(Saves, Faults, ::testing::ValuesIn(kChanges),
                         [](const auto& info) { return info.param.name; });

// The end of a run with save_total_limit 1 and a best checkpoint.
TEST(KeepOnly, ALossOfPowerAtEveryOperationSparesTheOneThatIsKept) {
  State state(1);
  int num_more = 0;
  const auto start = [&](const TemporaryFolder& folder) {
    for (const int64_t step : {1, 2, 3}) {
      state.save(folder.path(), static_cast<double>(step), unsynced,
                 {.name = "Save", .step = step});
    }
  };
  const auto act = [](const fs::path& folder, FileSystem& files) {
    try {
      keep_only(folder / "checkpoint-1", files);
      return true;
    } catch (const IoError&) {
      return false;  // as a run of which the power is gone
    }
  };
  for_each_crash({.fault = CrashDisk::Fault::kPowerLoss}, start, act,
                 [&](const Crash& crash, bool) {
                   std::vector<fs::path> left = list(crash.left);
                   ASSERT_FALSE(left.empty());
                   EXPECT_EQ(left.front().filename(), "checkpoint-1");
                   EXPECT_EQ(state.resume(crash.left), static_cast<double>(step_of(left.back())));
                   num_more += left.size() > 1;
                   for (size_t i = 1; i < left.size(); ++i) fs::remove_all(left[i]);
                   EXPECT_EQ(state.resume(crash.left), 1);
                 });
  EXPECT_GT(num_more, 0);
}

// What the next run makes up for, after a kill between a save and `latest`, and a crash meanwhile.
TEST(FinishSave, ALossOfPowerAtEveryOperationSparesTheNewest) {
  State state(1);
  const auto start = [&](const TemporaryFolder& folder) {
    strata::testing::RefusesLatest kills;
    for (const int64_t step : {1, 2, 3}) {
      kills.refuses = step == 3;
      state.save(folder.path(), static_cast<double>(step), kills, {.name = "Save", .step = step});
    }
  };
  const auto finish = [](const fs::path& folder, FileSystem& files) {
    try {
      finish_save(folder / "checkpoint-3", surplus(folder, 1), files);
      return true;
    } catch (const IoError&) {
      return false;
    }
  };
  int num_more = 0;
  for (const auto fault : {CrashDisk::Fault::kPowerLoss, CrashDisk::Fault::kError}) {
    for_each_crash({.fault = fault}, start, finish, [&](const Crash& crash, bool) {
      const std::vector<fs::path> left = list(crash.left);
      ASSERT_FALSE(left.empty());
      EXPECT_EQ(left.back(), crash.left / "checkpoint-3") << "at operation " << crash.at;
      for (const fs::path& folder : left) PieceReader(folder).verify_all();
      num_more += left.size() > 1;
      // The disk's model does not keep when what it began with came, by which `latest` is judged.
      if (fault == CrashDisk::Fault::kPowerLoss) return;
      EXPECT_EQ(state.resume(crash.left), 3) << "at operation " << crash.at;
      EXPECT_TRUE(finish(crash.left, unsynced));
      EXPECT_EQ(list(crash.left), std::vector{crash.left / "checkpoint-3"});
      EXPECT_EQ(read_file(crash.left / "latest"), "checkpoint-3\n");
      EXPECT_EQ(state.resume(crash.left), 3);
    });
  }
  EXPECT_GT(num_more, 0);
}

// The test's own disk must lose what nobody synced.
TEST(CrashDisk, LosesWhatIsNotSynced) {
  TemporaryFolder folder;
  CrashDisk files(folder.path());
  const int file = files.create(folder / "a");
  files.write(file, std::as_bytes(std::span("abc", 3)), 0);
  const auto found = [&](bool keep) {
    TemporaryFolder after;
    files.restore(after.path(), [&] { return keep; });
    return fs::exists(after / "a") ? read_file(after / "a") : "none";
  };
  EXPECT_EQ(found(false), "none");
  EXPECT_EQ(found(true), "abc");
  files.sync_path(folder.path());
  EXPECT_EQ(found(false), "");
  files.sync(file);
  EXPECT_EQ(found(false), "abc");
  files.rename(folder / "a", folder / "b");
  EXPECT_EQ(found(false), "abc");
  EXPECT_EQ(found(true), "none");
  ::close(file);
}

}  // namespace
}  // namespace strata::checkpoint
