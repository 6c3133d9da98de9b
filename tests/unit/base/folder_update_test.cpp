// Oracle: the folder before and after. Whatever operation goes wrong, a reader who opens the entry
// first finds the files that belong together, and whoever comes next finds the old or the new ones.
#include "strata/base/folder_update.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "../checkpoint/crash_disk.h"
#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

using strata::testing::CrashDisk;
using strata::testing::memory_or_disk;
using strata::testing::message_of;
using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

strata::testing::Unsynced unsynced;

void fill_old(const TemporaryFolder& folder) {
  folder.put("entry", "old");
  folder.put("a", "old");
  folder.put("stale", "old");
  folder.put("below/b", "old");
  folder.put("notes of the user", "kept");
  folder.put("checkpoint-1/state", "kept");
}

bool update(const fs::path& folder, FileSystem& files) {
  try {
    FolderUpdate update(folder, files);
    for (const char* name : {"a", "new", "entry", "below/b"}) update.write(name, "new");
    update.commit("entry", {"stale"});
  } catch (const IoError&) {
    return false;
  }
  return true;
}

std::string content_of(const fs::path& path) { return fs::exists(path) ? read_file(path) : "none"; }

// "old", "new", "none" (no entry) or what does not fit.
std::string state_of(const fs::path& folder) {
  EXPECT_EQ(content_of(folder / "notes of the user"), "kept");
  EXPECT_EQ(content_of(folder / "checkpoint-1/state"), "kept");
  const std::string entry = content_of(folder / "entry");
  if (entry == "none") return "none";
  const bool is_old = entry == "old";
  for (const auto& [name, expected] :
       std::map<std::string, std::string>{{"a", entry},
                                          {"below/b", entry},
                                          {"stale", is_old ? "old" : "none"},
                                          {"new", is_old ? "none" : "new"}}) {
    if (content_of(folder / name) != expected) return entry + " with another " + name;
  }
  return entry;
}

TEST(FolderUpdate, ALossOfPowerAtEveryOperationLeavesOldOrNew) {
  int operations = 0, num_old = 0, num_none = 0, num_new = 0;
  {
    TemporaryFolder folder(memory_or_disk());
    fill_old(folder);
    CrashDisk files(folder.path());
    ASSERT_TRUE(update(folder.path(), files));
    EXPECT_EQ(state_of(folder.path()), "new");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 6);
    operations = files.num_operations();
  }
  for (int at = 0; at <= operations; ++at) {
    TemporaryFolder folder(memory_or_disk());
    fill_old(folder);
    CrashDisk files(folder.path());
    files.break_at(at, CrashDisk::Fault::kPowerLoss);
    const bool is_done = update(folder.path(), files);
    std::mt19937 random(static_cast<unsigned>(at));
    for (int variant = 0; variant < 8; ++variant) {
      TemporaryFolder after(memory_or_disk());
      files.restore(after.path(), [&] {
        return variant == 0 ? false : variant == 1 ? true : random() % 2 == 0;
      });
      const std::string found = state_of(after.path());
      EXPECT_TRUE(found == "old" || found == "new" || found == "none") << found << " at " << at;
      num_none += found == "none";
      finish_folder_update(after.path(), unsynced);
      const std::string finished = state_of(after.path());
      EXPECT_TRUE(finished == "old" || finished == "new") << finished << " at " << at;
      EXPECT_TRUE(!is_done || finished == "new") << at;
      // The moment that decides may have passed while the old files are still in their places.
      EXPECT_TRUE(found != "new" || finished == "new") << at;
      ++(finished == "old" ? num_old : num_new);
      EXPECT_TRUE(update(after.path(), unsynced));
      EXPECT_EQ(state_of(after.path()), "new");
    }
  }
  EXPECT_GT(std::min({num_old, num_none, num_new}), 0);
}

TEST(FolderUpdate, AFailureOfEveryOperationLeavesOldOrNew) {
  for (const auto fault : {CrashDisk::Fault::kError, CrashDisk::Fault::kShortWrite}) {
    for (int at = 0, operations = 1; at < operations; ++at) {
      TemporaryFolder folder(memory_or_disk());
      fill_old(folder);
      CrashDisk files(folder.path());
      files.break_at(at, fault);
      const bool is_done = update(folder.path(), files);
      operations = std::max(operations, files.num_operations());
      const std::string found = state_of(folder.path());
      EXPECT_TRUE(found == "old" || found == "new" || found == "none") << found << " at " << at;
      finish_folder_update(folder.path(), unsynced);
      const std::string finished = state_of(folder.path());
      EXPECT_TRUE(finished == "new" || (finished == "old" && !is_done)) << finished << at;
    }
  }
}

TEST(FolderUpdate, ANewFolderIsMadeAndAForeignRecordIsRefused) {
  TemporaryFolder folder(memory_or_disk());
  FolderUpdate first(folder / "new/one");
  first.write("a", "1");
  first.commit("");
  EXPECT_EQ(read_file(folder / "new/one/a"), "1");
  folder.put("victim", "kept");
  for (const char* record : {R"({"entry": "", "removed": ["../victim"]})",
                             R"({"entry": "..", "removed": []})", R"({"entry": 1})", "[]", "{"}) {
    folder.put("other/.update.ready/update.json", record);
    EXPECT_NE(message_of<FormatError>([&] { finish_folder_update(folder / "other"); }), "")
        << record;
  }
  EXPECT_EQ(read_file(folder / "victim"), "kept");
}

}  // namespace
}  // namespace strata
