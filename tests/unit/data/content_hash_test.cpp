// Oracle: files with the same bytes have the same hash, and a changed file never keeps an old one.
#include "strata/data/files/content_hash.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata::data {
namespace {

using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

// Sets the time of the content's change; that of the inode's stays now.
void age(const fs::path& path) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
}

fs::path only_note(const fs::path& folder) {
  fs::path note;
  for (const auto& entry : fs::directory_iterator(folder)) {
    EXPECT_TRUE(note.empty());
    note = entry.path();
  }
  return note;
}

TEST(ContentHash, IsThatOfTheBytes) {
  const TemporaryFolder folder;
  const auto a = folder.put("a", std::string(100'000, 'x'));
  const auto b = folder.put("b", std::string(100'000, 'x'));
  EXPECT_EQ(content_hash(a), content_hash(b));
  EXPECT_EQ(content_hash(a).size(), 32u);
  folder.put("b", std::string(99'999, 'x') + "y");
  EXPECT_NE(content_hash(a), content_hash(b));
  EXPECT_NE(content_hash(folder.put("empty", "")), content_hash(a));
  EXPECT_THROW(content_hash(folder.path() / "nothing"), IoError);
}

TEST(ContentHash, DoesNotRememberWhatChangedJustNow) {
  const TemporaryFolder folder, memory;
  const auto file = folder.put("a", "one");
  age(file);  // by its own account; the inode knows better
  const HashMemory small{.folder = memory.path(), .smallest = 0};
  const std::string first = content_hash(file, small);
  EXPECT_TRUE(fs::is_empty(memory.path()));
  std::ofstream(file) << "two";
  age(file);
  EXPECT_NE(content_hash(file, small), first);
}

TEST(ContentHash, ForgetsAFileThatChanged) {
  const TemporaryFolder folder, memory;
  const auto file = folder.put("a", "one");
  const HashMemory small{.folder = memory.path() / "new", .smallest = 0};
  ::sleep(4);
  const std::string first = content_hash(file, small);
  const fs::path note = only_note(small.folder);
  EXPECT_EQ(content_hash(file, small), first);
  // What is remembered is what is answered: the proof that the file is not read again.
  std::string text;
  std::getline(std::ifstream(note), text);
  text.replace(text.find(first), 32, std::string(32, '0'));
  std::ofstream(note) << text;
  EXPECT_EQ(content_hash(file, small), std::string(32, '0'));
  EXPECT_EQ(content_hash(file, {.folder = small.folder, .smallest = 100}), first);
  // Same size, old time, another inode change.
  const auto time = fs::last_write_time(file);
  std::ofstream(file) << "two";
  fs::last_write_time(file, time);
  EXPECT_EQ(content_hash(file, small), content_hash(folder.put("b", "two")));
  std::ofstream(note) << "nonsense";
  EXPECT_EQ(content_hash(file, small), content_hash(folder.path() / "b"));
}

}  // namespace
}  // namespace strata::data
