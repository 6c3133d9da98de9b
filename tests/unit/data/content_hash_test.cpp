// Oracle: files with the same bytes have the same hash, and a changed file never keeps an old one.
#include "strata/data/files/content_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <span>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/data/files/seen_files.h"

namespace strata::data {
namespace {

using strata::testing::TemporaryFolder;
using ::testing::HasSubstr;

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

// Oracle: the hashes of each file alone.
TEST(ContentHashes, OfSmallFilesAreInOneNote) {
  const TemporaryFolder folder, memory;
  std::vector<fs::path> files;
  for (const char* text : {"one", "two", "three"}) files.push_back(folder.put(text, text));
  files.push_back(folder.put("large", std::string(1000, 'x')));
  std::vector<std::string> alone;
  for (const fs::path& file : files) alone.push_back(content_hash(file));
  EXPECT_EQ(content_hashes(files), alone);
  EXPECT_EQ(content_hashes({}, {.folder = memory.path(), .smallest = 0}),
            std::vector<std::string>());
  ::sleep(4);
  const HashMemory twelve{.folder = memory.path(), .smallest = 12};
  alone.pop_back();
  EXPECT_EQ(content_hashes(std::span(files).first(3), twelve), alone);
  EXPECT_TRUE(fs::is_empty(memory.path())) << "together they are too small";
}

// One has a name that is not UTF-8, which no JSON text takes as it is.
TEST(ContentHashes, AreThoseOfWhatChanged) {
  const TemporaryFolder folder, memory;
  std::vector<fs::path> files;
  for (const char* text : {"one", "tw\xf4", "three"}) files.push_back(folder.put(text, text));
  const std::vector<std::string> alone = {content_hash(files[0]), content_hash(files[1]),
                                          content_hash(files[2])};
  ::sleep(4);
  const HashMemory small{.folder = memory.path(), .smallest = 11};
  EXPECT_EQ(content_hashes(files, small), alone);
  const fs::path note = only_note(memory.path());
  // What is remembered is what is answered: the proof that files are not read again.
  std::string text;
  std::getline(std::ifstream(note), text);
  for (size_t i = 0; i < 2; ++i) text.replace(text.find(alone[i]), 32, std::string(32, '0'));
  std::ofstream(note) << text;
  const std::string zeros(32, '0');
  EXPECT_EQ(content_hashes(files, small), (std::vector{zeros, zeros, alone[2]}));
  std::ofstream(files[0]) << "six";
  EXPECT_EQ(content_hashes(files, small), (std::vector{content_hash(files[0]), zeros, alone[2]}));
  // Another list has another note.
  EXPECT_EQ(content_hashes(std::span(files).last(2), {.folder = memory.path(), .smallest = 8}),
            (std::vector{alone[1], alone[2]}));
  std::ofstream(note) << "nonsense";
  EXPECT_EQ(content_hashes(files, small),
            (std::vector{content_hash(files[0]), alone[1], alone[2]}));
}

// Oracle: what was done to the files.
TEST(SeenFiles, KnowWhatChanged) {
  const TemporaryFolder folder;
  const std::vector<std::vector<fs::path>> lists = {
      {folder.put("a", "one"), folder.put("b", "two")}, {folder.put("a", "one")}};
  const auto error_after = [&](const std::function<void()>& change) {
    const SeenFiles seen(lists);
    seen.require_unchanged();
    change();
    return strata::testing::message_of<IoError>([&] { seen.require_unchanged(); });
  };
  EXPECT_THAT(error_after([&] { std::ofstream(lists[0][1], std::ios::app) << "more"; }),
              HasSubstr("b: found 3 bytes become 7 while its rows were read"));
  EXPECT_THAT(error_after([&] { age(lists[0][0]); }), HasSubstr("a: found it written to while"));
  EXPECT_THAT(error_after([&] { fs::remove(lists[0][0]); }), HasSubstr("a: found it gone while"));
}

}  // namespace
}  // namespace strata::data
