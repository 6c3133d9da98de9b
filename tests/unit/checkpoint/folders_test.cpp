// Oracle: an output folder laid out by hand: what is listed, taken up again, set aside and removed.
#include "strata/checkpoint/folders.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "tiny_rank.h"

namespace strata::checkpoint {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::EndsWith;

namespace fs = std::filesystem;

TEST(Sharded, ListResolveAndRotateSeeWholeCheckpointsOnly) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  EXPECT_THROW(candidates("true", folder.path()), ConfigError);
  for (int step : {2, 10}) save(folder.path(), step, *rank.store, nullptr, {});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the file system's clock is coarse
  save(folder.path(), 9, *rank.store, nullptr, {});
  fs::create_directories(folder.path() / "checkpoint-11");  // no manifest: not a checkpoint
  fs::create_directories(folder.path() / "checkpoint-x");
  folder.put("checkpoint-12/trainer_state.json", "{}");
  folder.put("checkpoint-13", "");
  folder.put("checkpoint-8/rank-00000.safetensors", "");
  // As a folder that nobody here may look into, or that a file server has lost sight of.
  folder.put("checkpoint-14/progress.json", "{}");
  fs::create_symlink("manifest.json", folder / "checkpoint-14/manifest.json");
  const auto others = passed_over(folder.path());
  ASSERT_EQ(others.size(), 5U);
  const std::vector<std::pair<std::string, std::string>> reasons = {
      {"checkpoint-8", "not whole"},
      {"checkpoint-11", "it is empty"},
      {"checkpoint-12", "another program saved it"},
      {"checkpoint-13", "it is no folder"},
      {"checkpoint-14", "cannot be looked into: too many levels of symbolic links"}};
  for (size_t i = 0; i < reasons.size(); ++i) {
    EXPECT_EQ(others[i].folder.filename(), reasons[i].first);
    EXPECT_NE(others[i].reason.find(reasons[i].second), std::string::npos) << others[i].reason;
  }
  const auto found = list(folder.path());
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found.back().filename(), "checkpoint-10");
  // What was there before `latest` was written is no continuation of what it names ...
  const std::vector<fs::path> own = {folder / "checkpoint-9", folder / "checkpoint-2"};
  EXPECT_EQ(candidates("true", folder.path()), own);
  EXPECT_EQ(set_aside(folder.path()), std::vector{fs::path(folder / "checkpoint-10")});
  // ... unless there is nothing else; what came later is newer.
  TemporaryFolder other;
  fs::copy(folder / "latest", other / "latest");
  fs::copy(folder / "checkpoint-10", other / "checkpoint-10", fs::copy_options::recursive);
  EXPECT_EQ(candidates("true", other.path()), std::vector{fs::path(other / "checkpoint-10")});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  fs::copy(folder / "latest", other / "latest", fs::copy_options::overwrite_existing);
  EXPECT_EQ(set_aside(other.path()), std::vector{fs::path(other / "checkpoint-10")});
  EXPECT_EQ(candidates("true", other.path()), std::vector{fs::path(other / "checkpoint-10")});
  fs::copy(folder / "checkpoint-10", folder / "checkpoint-12-copy", fs::copy_options::recursive);
  fs::remove_all(folder / "checkpoint-12");
  fs::rename(folder / "checkpoint-12-copy", folder / "checkpoint-12");
  EXPECT_EQ(candidates("true", folder.path()).front().filename(), "checkpoint-12");
  fs::remove_all(folder / "checkpoint-12");
  EXPECT_EQ(candidates("some/where", folder.path()), std::vector{fs::path("some/where")});
  EXPECT_EQ(candidates("some//where/", folder.path()), std::vector{fs::path("some/where")});
  EXPECT_THAT(message_of<ConfigError>([&] { candidates("checkpoint-10", folder.path()); }),
              EndsWith("name " + (folder / "checkpoint-10").string()));
  EXPECT_THAT(message_of<ConfigError>([&] { candidates("latest", other.path()); }),
              EndsWith("true takes the newest checkpoint"));
  // What an earlier run left counts for no limit and does not go.
  const std::vector<fs::path> all = {folder / "checkpoint-2", folder / "checkpoint-9",
                                     folder / "checkpoint-10"};
  rotate(folder.path(), 2);
  EXPECT_EQ(list(folder.path()), all);
  fs::create_directory_symlink(folder / "checkpoint-2", folder / "link");
  for (const fs::path& kept :
       {folder / "checkpoint-2", folder / "checkpoint-2/", folder / "link"}) {
    rotate(folder.path(), 1, {kept});
    EXPECT_EQ(list(folder.path()), all) << kept;
  }
  rotate(folder.path(), 1);
  EXPECT_EQ(list(folder.path()), (std::vector<fs::path>{all[1], all[2]}));
  // This run has passed its step: it is an old one.
  save(folder.path(), 11, *rank.store, nullptr, {});
  rotate(folder.path(), 1);
  EXPECT_EQ(list(folder.path()), std::vector{fs::path(folder / "checkpoint-11")});
  save(folder.path(), 9, *rank.store, nullptr, {});
  save(folder.path(), 12, *rank.store, nullptr, {});
  keep_only(folder / "checkpoint-9");
  ASSERT_EQ(list(folder.path()).size(), 1U);
  EXPECT_EQ(read_file(folder / "latest"), "checkpoint-9\n");
}

void set_time(const fs::path& file, int64_t seconds) {
  const timespec times[2] = {{seconds, 0}, {seconds, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
}

TEST(Sharded, ACheckpointCountsAsSavedSinceThoughLatestCouldNotBeWritten) {
  struct Row {
    int64_t latest, first,
        last;  // when `latest` and the checkpoints of steps 2 and 10 were written
    std::string saved;
  };
  for (const Row& row : {Row{50, 50, 50, ""}, Row{150, 50, 50, "true"}, Row{50, 50, 150, "true"},
                         Row{0, 50, 150, "true"}, Row{0, 50, 50, ""},
                         // The later step is an earlier run's: "the newest" would be that one.
                         Row{50, 150, 50, "checkpoint-2"}}) {
    TemporaryFolder folder;
    EXPECT_EQ(saved_since(folder.path(), 0), "");
    set_time(folder.put("checkpoint-2/manifest.json", "{}"), row.first);
    set_time(folder.put("checkpoint-10/manifest.json", "{}"), row.last);
    if (row.latest > 0) set_time(folder.put("latest", "checkpoint-2"), row.latest);
    EXPECT_EQ(fs::path(saved_since(folder.path(), 100)).filename(), row.saved)
        << row.latest << " " << row.last;
  }
}

// A restart goes on from what its own launcher's run has saved, whatever the times of files say.
TEST(Sharded, WhatALauncherHasSavedIsKnownByItsMark) {
  struct Row {
    std::vector<std::pair<int64_t, const char*>> saved;  // steps and what their progress says
    std::string latest, found;
  };
  constexpr const char *kOwn = R"({"launch": 12.5})", *kOther = R"({"launch": 12.25})";
  for (const Row& row :
       {Row{{}, "", ""}, Row{{{2, kOther}, {4, "{}"}}, "checkpoint-4", ""},
        Row{{{2, kOwn}, {4, kOwn}}, "checkpoint-4", "true"},
        Row{{{2, kOwn}, {4, "{"}}, "checkpoint-4", "checkpoint-2"},
        Row{{{2, R"({"launch": "12.5"})"}}, "checkpoint-2", ""},
        // An earlier run's reach further; where `latest` was written, it was before.
        Row{{{2, kOwn}, {9, kOther}}, "", "checkpoint-2"},
        Row{{{2, kOwn}, {9, kOther}}, "checkpoint-2", "true"}}) {
    TemporaryFolder folder;
    for (auto saved = row.saved.rbegin(); saved != row.saved.rend(); ++saved) {
      const std::string name = fmt::format("checkpoint-{}/", saved->first);
      folder.put(name + "progress.json", saved->second);
      folder.put(name + "manifest.json", "{}");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    if (!row.latest.empty()) folder.put("latest", row.latest);
    EXPECT_EQ(fs::path(saved_by_launch(folder.path(), 12.5)).filename(), row.found);
  }
}

}  // namespace
}  // namespace strata::checkpoint
