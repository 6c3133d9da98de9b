// Oracle: the old and the new state. Whatever operation of a save goes wrong, and whatever of the
// unsynced ones reached the disk, a reader finds one of the two whole.
#include <unistd.h>

#include <random>

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "crash_disk.h"
#include "strata/base/error.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/sharded.h"
#include "tiny_rank.h"

namespace strata::checkpoint {
namespace {

using strata::testing::CrashDisk;
using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

// What only has to be there need not wait for the disk.
class Unsynced : public FileSystem {
 public:
  int sync(int) override { return 0; }
  int sync_path(const fs::path&) override { return 0; }
};
Unsynced unsynced;

// What a save writes and a restart must find.
class State {
 public:
  State() : rank_(0, 1) {}

  void set(double value) {
    for (int u = 0; u < rank_.store->num_units(); ++u) {
      rank_.store->home(u, 0).value.fill_(value);
      rank_.optimizer->moments(u, 0).exp_avg.fill_(value * 2);
      rank_.optimizer->moments(u, 0).exp_avg_sq.fill_(value * 3);
    }
  }
  void save(const fs::path& output, int64_t step, double value, FileSystem& files,
            bool is_whole = false) {
    set(value);
    SaveRequest request{.output_dir = output,
                        .step = step,
                        .num_updates = step,
                        .small_files = {{"progress.json", std::to_string(value)}}};
    if (is_whole) request.whole = whole_files(rank_);
    write_checkpoint(request, local_pieces(*rank_.store, rank_.optimizer.get()),
                     role_of(rank_.mesh), *rank_.mesh.world, files);
  }
  // The state of the newest whole checkpoint, as resuming takes it. Fails the test for a mixture.
  double resume(const fs::path& output) {
    set(-1);
    const std::vector<fs::path> found = candidates("true", output);
    PieceReader reader(found.front());
    load(reader, *rank_.store, rank_.optimizer.get());
    const double value = std::stod(reader.small_file("progress.json"));
    for (int u = 0; u < rank_.store->num_units(); ++u) {
      for (const shard::Piece& piece : pieces_of(rank_.store->unit(u).segments[0], 0)) {
        const auto all = [&](const at::Tensor& flat, double expected) {
          return (flat.narrow(0, piece.shard_begin, piece.length) == expected).all().item<bool>();
        };
        EXPECT_TRUE(all(rank_.store->home(u, 0).value, value)) << piece.parameter->name();
        EXPECT_TRUE(all(rank_.optimizer->moments(u, 0).exp_avg, value * 2));
        EXPECT_TRUE(all(rank_.optimizer->moments(u, 0).exp_avg_sq, value * 3));
      }
    }
    return value;
  }

 private:
  Rank rank_;
};

constexpr double kOld = 1, kNew = 2;

// What a run does to its folder: a new checkpoint, then the removal of the old one.
struct Change {
  const char* name;
  int64_t step;  // of the new one; the old one's is 1
  bool is_whole;
};
constexpr Change kChanges[] = {{"New", 2, false}, {"Again", 1, false}, {"Whole", 2, true}};

// The old checkpoint, and the new one over it. Answers whether the save said that it succeeded.
bool save_over(State& state, const TemporaryFolder& folder, const Change& change,
               CrashDisk& files) {
  try {
    state.save(folder.path(), change.step, kNew, files, change.is_whole);
  } catch (const IoError&) {
    return false;
  }
  try {
    rotate(folder.path(), 1, {}, files);
  } catch (const IoError&) {
    // What was saved is safe.
  }
  return true;
}

int count_operations(State& state, const Change& change) {
  TemporaryFolder folder;
  state.save(folder.path(), 1, kOld, unsynced);
  CrashDisk files(folder.path());
  EXPECT_TRUE(save_over(state, folder, change, files));
  EXPECT_EQ(list(folder.path()).size(), 1U);
  return files.num_operations();
}

class Faults : public ::testing::TestWithParam<Change> {};

TEST_P(Faults, ALossOfPowerAtEveryOperationLeavesTheOldOrTheNewState) {
  State state;
  const int operations = count_operations(state, GetParam());
  ASSERT_GT(operations, 60);
  int num_old = 0, num_new = 0;
  for (int at = 0; at <= operations; ++at) {
    TemporaryFolder folder;
    state.save(folder.path(), 1, kOld, unsynced);
    CrashDisk files(folder.path());
    files.break_at(at, CrashDisk::Fault::kPowerLoss);
    const bool is_saved = save_over(state, folder, GetParam(), files);
    std::mt19937 random(static_cast<unsigned>(at));
    for (int variant = 0; variant < 6; ++variant) {
      const auto keep = [&] {
        return variant == 0 ? false : variant == 1 ? true : random() % 2 == 0;
      };
      TemporaryFolder after;
      files.restore(after.path(), keep);
      const double found = state.resume(after.path());
      EXPECT_TRUE(found == kOld || found == kNew) << found << " at operation " << at;
      EXPECT_TRUE(!is_saved || found == kNew) << "a reported save is gone, operation " << at;
      ++(found == kOld ? num_old : num_new);
      // The next run saves into what the crash left.
      state.save(after.path(), 3, kNew + 1, unsynced);
      EXPECT_EQ(state.resume(after.path()), kNew + 1);
    }
  }
  EXPECT_GT(num_old, 0);
  EXPECT_GT(num_new, 0);
}

TEST_P(Faults, AFailureOfEveryOperationLeavesTheOldOrTheNewState) {
  State state;
  const int operations = count_operations(state, GetParam());
  for (const auto fault : {CrashDisk::Fault::kError, CrashDisk::Fault::kShortWrite}) {
    for (int at = 0; at < operations; ++at) {
      TemporaryFolder folder;
      state.save(folder.path(), 1, kOld, unsynced);
      CrashDisk files(folder.path());
      files.break_at(at, fault);
      const bool is_saved = save_over(state, folder, GetParam(), files);
      const double found = state.resume(folder.path());
      EXPECT_TRUE(found == kOld || found == kNew) << found << " at operation " << at;
      EXPECT_TRUE(!is_saved || found == kNew) << at;
      files.break_at(0, CrashDisk::Fault::kNone);
      state.save(folder.path(), 3, kNew + 1, files);
      EXPECT_EQ(state.resume(folder.path()), kNew + 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Saves, Faults, ::testing::ValuesIn(kChanges),
                         [](const auto& info) { return info.param.name; });

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
