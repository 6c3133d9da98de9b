// Oracle: the folder as it was before the crash, or as it would have been without it.
#include "strata/checkpoint/repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/folder_lock.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;
using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An output folder with everything that a crash can leave, and what looks like it.
void fill(const TemporaryFolder& folder) {
  folder.put(".checkpoint-5.replaced-77/manifest.json", "five");
  folder.put("checkpoint-6/manifest.json", "six");
  folder.put(".checkpoint-6.replaced-78/manifest.json", "six of before");
  folder.put("config.json.other", "of the user");
  folder.put("checkpoint-6.old-1/manifest.json", "of the user");
  folder.put(".notes.replaced-3/text", "of the user");
  folder.put("model.safetensors", "old");
  folder.put(".update.ready/model.safetensors", "new");
  folder.put(".update.ready/config.json", "new");
  folder.put(".update.ready/update.json", R"({"entry": "config.json", "removed": []})");
}

void expect_mended(const TemporaryFolder& folder) {
  EXPECT_EQ(read_file(folder / "checkpoint-5/manifest.json"), "five");
  EXPECT_EQ(read_file(folder / "checkpoint-6/manifest.json"), "six");
  EXPECT_FALSE(fs::exists(folder / ".checkpoint-6.replaced-78"));
  EXPECT_EQ(read_file(folder / "checkpoint-6.old-1/manifest.json"), "of the user");
  EXPECT_EQ(read_file(folder / ".notes.replaced-3/text"), "of the user");
  EXPECT_EQ(read_file(folder / "model.safetensors"), "new");
  EXPECT_EQ(read_file(folder / "config.json"), "new");
  EXPECT_FALSE(fs::exists(folder / ".update.ready"));
}

TEST(Repair, ANewRunFinishesWhatAnEarlierOneLeft) {
  const TemporaryFolder folder;
  fill(folder);
  EXPECT_THAT(
      finish_interrupted(folder.path()),
      ElementsAre(HasSubstr("now they are"), HasSubstr("checkpoint-5: it was being replaced")));
  expect_mended(folder);
  EXPECT_THAT(finish_interrupted(folder.path()), IsEmpty());
}

TEST(Repair, OfAFolderUnlessARunWritesThere) {
  const TemporaryFolder folder;
  fill(folder);
  {
    const FolderLock lock(folder.path());
    EXPECT_THAT(message_of<ConfigError>([&] { repair(folder.path()); }), HasSubstr("writes to"));
    EXPECT_THAT(message_of<ConfigError>([&] { repair(folder / "checkpoint-5"); }),
                HasSubstr("writes to"));
    EXPECT_TRUE(fs::exists(folder / ".checkpoint-5.replaced-77"));
    EXPECT_THAT(repair(folder / "checkpoint-6"), IsEmpty()) << "there is nothing to do";
  }
  EXPECT_EQ(repair(folder.path()).size(), 2u);
  expect_mended(folder);
}

TEST(Repair, OfOneCheckpoint) {
  const TemporaryFolder folder;
  fill(folder);
  EXPECT_THAT(message_of<IoError>([&] { require_finished(folder / "checkpoint-5"); }),
              HasSubstr("checkpoint-5: found it as .checkpoint-5.replaced-77"));
  EXPECT_EQ(repair(folder.path() / "checkpoint-5/").size(), 1u);
  EXPECT_EQ(read_file(folder / "checkpoint-5/manifest.json"), "five");
  require_finished(folder / "checkpoint-5");
  EXPECT_THAT(message_of<IoError>([&] { require_finished(folder.path()); }),
              HasSubstr("strata inspect " + folder.path().string() + " --repair"));
  EXPECT_TRUE(fs::exists(folder / ".update.ready"));
  EXPECT_THAT(repair(folder / "none"), IsEmpty());
  require_finished(folder / "none");
}

}  // namespace
}  // namespace strata::checkpoint
