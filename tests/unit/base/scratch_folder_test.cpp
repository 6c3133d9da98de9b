// Oracle: what is on the disk after owners lived, ended and were killed.
#include "strata/base/scratch_folder.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::HasSubstr;

int count_entries(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ScratchFolder, GoesWithItsOwner) {
  TemporaryFolder parent;
  {
    const ScratchFolder folder(parent.path(), "swap");
    std::ofstream(folder.path() / "data") << "x";
    EXPECT_THAT(folder.path().filename().string(), HasSubstr("swap-"));
    EXPECT_EQ(count_entries(parent.path()), 1);
  }
  EXPECT_EQ(count_entries(parent.path()), 0);
}

TEST(ScratchFolder, OfAKilledProcessIsRemovedByTheNextAndNoOther) {
  TemporaryFolder parent;
  parent.put("swap-notes.txt", "a file of the user's");
  parent.put("swap-mine/data", "a folder of the user's");
  const ScratchFolder alive(parent.path(), "swap");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ScratchFolder folder(parent.path(), "swap");
    std::ofstream(folder.path() / "data") << "x";
    char byte = 1;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(ScratchFolder(parent.path(), "swap").num_removed(), 0);
  EXPECT_EQ(count_entries(parent.path()), 4);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(ScratchFolder(parent.path(), "swap").num_removed(), 1);
  EXPECT_EQ(count_entries(parent.path()), 3);
  EXPECT_TRUE(fs::exists(alive.path() / "owner"));
  EXPECT_TRUE(fs::exists(parent / "swap-mine" / "data"));
}

TEST(ScratchFolder, HalfMadeOnesGoOnceNobodyCanBeMakingThem) {
  TemporaryFolder parent;
  for (const char* name : {".new-swap-abc123", ".new-swap-def456", ".new-other-abc123"}) {
    parent.put(std::string(name) + "/owner", "");
    if (std::string(name) == ".new-swap-def456") continue;
    fs::last_write_time(parent / name, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  EXPECT_EQ(ScratchFolder(parent.path(), "swap").num_removed(), 0);
  EXPECT_FALSE(fs::exists(parent / ".new-swap-abc123"));
  EXPECT_TRUE(fs::exists(parent / ".new-swap-def456")) << "somebody may be making it";
  EXPECT_TRUE(fs::exists(parent / ".new-other-abc123"));
}

TEST(ScratchFolder, NeedsAnExistingFolder) {
  TemporaryFolder parent;
  EXPECT_THAT(message_of<IoError>([&] { ScratchFolder(parent / "missing", "swap"); }),
              HasSubstr("missing: found no such folder, expected an existing one"));
  EXPECT_FALSE(fs::exists(parent / "missing"));
  EXPECT_THAT(message_of<IoError>([&] { ScratchFolder("/proc", "swap"); }),
              HasSubstr("expected a writable folder"));
}

}  // namespace
}  // namespace strata
