// Oracle: the folder before and after. Whatever operation goes wrong, a reader who opens the entry
// first finds the files that belong together, and whoever comes next finds the old or the new ones.
#include "strata/base/folder_update.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../checkpoint/crash_loop.h"
#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

using strata::testing::Crash;
using strata::testing::CrashDisk;
using strata::testing::for_each_crash;
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
  int num_old = 0, num_none = 0, num_new = 0;
  const int operations = for_each_crash(
      {.fault = CrashDisk::Fault::kPowerLoss, .num_variants = 8}, fill_old, update,
      [&](const Crash& crash, bool is_done) {
        const std::string found = state_of(crash.left);
        EXPECT_TRUE(found == "old" || found == "new" || found == "none")
            << found << " at " << crash.at;
        num_none += found == "none";
        finish_folder_update(crash.left, unsynced);
        const std::string finished = state_of(crash.left);
        EXPECT_TRUE(finished == "old" || finished == "new") << finished << " at " << crash.at;
        EXPECT_TRUE(!is_done || finished == "new") << crash.at;
        // The moment that decides may have passed while the old files are still in their places.
        EXPECT_TRUE(found != "new" || finished == "new") << crash.at;
        ++(finished == "old" ? num_old : num_new);
        EXPECT_TRUE(update(crash.left, unsynced));
        EXPECT_EQ(state_of(crash.left), "new");
        EXPECT_EQ(std::distance(fs::directory_iterator(crash.left), fs::directory_iterator()), 6);
      });
  EXPECT_GT(operations, 20);
  EXPECT_GT(std::min({num_old, num_none, num_new}), 0);
}

TEST(FolderUpdate, AFailureOfEveryOperationLeavesOldOrNew) {
  for (const auto fault : {CrashDisk::Fault::kError, CrashDisk::Fault::kShortWrite}) {
    int num_old = 0, num_unfinished = 0;
    for_each_crash({.fault = fault}, fill_old, update, [&](const Crash& crash, bool is_done) {
      const std::string found = state_of(crash.left);
      EXPECT_TRUE(found == "old" || found == "new" || found == "none")
          << found << " at " << crash.at;
      num_unfinished += has_unfinished_update(crash.left);
      finish_folder_update(crash.left, unsynced);
      const std::string finished = state_of(crash.left);
      EXPECT_TRUE(finished == "new" || (finished == "old" && !is_done)) << finished << crash.at;
      num_old += finished == "old";
    });
    EXPECT_GT(std::min(num_old, num_unfinished), 0);
  }
}

TEST(FolderUpdate, ANewFolderIsMadeAndAForeignRecordIsRefused) {
  TemporaryFolder folder(memory_or_disk());
  FolderUpdate first(folder / "new/one");
  first.write("a", "1");
  first.commit("");
  EXPECT_EQ(read_file(folder / "new/one/a"), "1");
  folder.put("victim", "kept");
  for (const char* record :
       {R"({"entry": "", "removed": ["../victim"]})",
        R"({"entry": "", "removed": ["a/../victim"]})", R"({"entry": "", "removed": ["a/.."]})",
        R"({"entry": "a/b", "removed": []})", R"({"entry": "..", "removed": []})",
        R"({"entry": 1})", "[]", "{"}) {
    folder.put("other/.update.ready/update.json", record);
    EXPECT_NE(message_of<FormatError>([&] { finish_folder_update(folder / "other"); }), "")
        << record;
  }
  EXPECT_EQ(read_file(folder / "victim"), "kept");
  folder.put("away/victim", "kept");
  fs::create_directory_symlink(folder / "away", folder / "other/below");
  folder.put("other/.update.ready/update.json", R"({"entry": "", "removed": ["below/victim"]})");
  EXPECT_THAT(message_of<FormatError>([&] { finish_folder_update(folder / "other"); }),
              ::testing::HasSubstr("found no folder of its own"));
  EXPECT_EQ(read_file(folder / "away/victim"), "kept");
}

}  // namespace
}  // namespace strata
