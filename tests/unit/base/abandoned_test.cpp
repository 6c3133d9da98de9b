// Oracle: which processes live (fork, waitpid) and who holds a lock (flock).
#include "strata/base/abandoned.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

pid_t dead_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST(Abandoned, OnlyWhatNobodyWritesGoes) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  const pid_t dead = dead_process(), other = dead_process();
  const fs::path left = fmt::format("{}.tmp-{}", out.string(), dead);
  const fs::path claimed = fmt::format("{}.tmp-{}", out.string(), other);
  const fs::path alive = fmt::format("{}.tmp-{}", out.string(), ::getppid());
  const fs::path foreign = fmt::format("{}.tmp-{}x", out.string(), dead);
  const fs::path of_another = fmt::format("{}er.tmp-{}", out.string(), dead);
  for (const fs::path& path : {left, claimed, alive, foreign, of_another}) {
    fs::create_directories(path);
    std::ofstream(path / "model.safetensors") << "weights";
  }
  {
    const WriteClaim claim(claimed);
    EXPECT_EQ(remove_abandoned(out.string() + "/"),
              std::vector{fmt::format("removed {}, which a killed process left", left.string())});
    EXPECT_FALSE(fs::exists(left));
    for (const fs::path& path : {claimed, alive, foreign, of_another}) {
      EXPECT_TRUE(fs::exists(path / "model.safetensors")) << path;
    }
  }
  EXPECT_EQ(remove_abandoned(out).size(), 1u);
  EXPECT_FALSE(fs::exists(claimed));
}

// Containers count their processes from 1 each: the number says little.
TEST(Abandoned, OfTheOwnNumberGoesUnlessSomebodyHasClaimedIt) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  const fs::path own = fmt::format("{}.tmp-{}", out.string(), ::getpid());
  fs::create_directories(own);
  std::ofstream(own / "model.safetensors") << "weights";
  {
    const WriteClaim claim(own);  // one of another open file: as of another process
    EXPECT_THROW(remove_abandoned(out), IoError);
    EXPECT_THROW(AtomicFolder{out}, IoError);
    EXPECT_TRUE(fs::exists(own / "model.safetensors"));
  }
  EXPECT_EQ(remove_abandoned(out).size(), 1u);
  EXPECT_FALSE(fs::exists(own));
  const AtomicFolder writing(out);
  EXPECT_EQ(writing.path(), own);
}

TEST(Abandoned, WhatIsNoProcessStays) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  const fs::path date = out.string() + ".tmp-20240501";
  const fs::path zeros = fmt::format("{}.tmp-00{}", out.string(), dead_process());
  for (const fs::path& path : {date, zeros}) fs::create_directories(path);
  EXPECT_TRUE(remove_abandoned(out).empty());
  EXPECT_TRUE(fs::exists(date) && fs::exists(zeros));
}

TEST(Abandoned, WhatIsReadStays) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  const fs::path source = fmt::format("{}.tmp-{}", out.string(), dead_process());
  fs::create_directories(source / "checkpoint-1");
  for (const fs::path& in_use : {source, source / "checkpoint-1", source / "."}) {
    EXPECT_TRUE(remove_abandoned(out, std::vector{folder.path() / "other", in_use}).empty());
    EXPECT_TRUE(fs::exists(source / "checkpoint-1"));
  }
  EXPECT_EQ(remove_abandoned(out, std::vector{folder.path() / "other", out}).size(), 1u);
}

// Nobody writes into it: opening it must not wait.
TEST(Abandoned, PipesDoNotStop) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  ASSERT_EQ(::mkfifo(fmt::format("{}.tmp-{}", out.string(), dead_process()).c_str(), 0600), 0);
  EXPECT_EQ(remove_abandoned(out).size(), 1u);
}

TEST(Abandoned, FilesGoAsWellAndLinksStay) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "model.gguf", kept = folder.path() / "kept";
  const fs::path left = fmt::format("{}.tmp-{}", out.string(), dead_process());
  const fs::path link = fmt::format("{}.tmp-{}", out.string(), dead_process());
  std::ofstream(left) << "weights";
  std::ofstream(kept) << "weights";
  fs::create_symlink(kept, link);
  EXPECT_EQ(remove_abandoned(out).size(), 1u);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(kept));
  EXPECT_TRUE(fs::is_symlink(link));
}

}  // namespace
}  // namespace strata
