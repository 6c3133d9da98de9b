// Oracle: round trip, and the state of the folder after writes that the system cuts short.
#include "strata/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

size_t count_entries(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// While alive, no file of this process may grow beyond `limit_bytes`: a disk that fills up.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t limit_bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    struct rlimit limited = before_;
    limited.rlim_cur = limit_bytes;
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  struct rlimit before_ {};
  void (*handler_)(int) = nullptr;
};

TEST(MappedFile, ShowsTheBytes) {
  const TemporaryFolder folder;
  MappedFile file(folder.put("a", "hello"));
  ASSERT_EQ(file.data().size(), 5u);
  EXPECT_EQ(std::to_integer<char>(file.data()[4]), 'o');
  const MappedFile moved = std::move(file);
  EXPECT_EQ(moved.data().size(), 5u);
  EXPECT_TRUE(file.data().empty());
  EXPECT_TRUE(MappedFile(folder.put("empty", "")).data().empty());
}

TEST(MappedFile, NamesWhatIsWrong) {
  const TemporaryFolder folder;
  const auto message = [](const fs::path& path) {
    return message_of<IoError>([&] { MappedFile file(path); });
  };
  EXPECT_EQ(message(folder / "none"),
            (folder / "none").string() +
                ": found no such file or directory, expected a readable file; check the path and "
                "its permissions");
  EXPECT_THAT(message(folder.path()), HasSubstr("found a folder, expected a file"));
  ::mkfifo((folder / "pipe").c_str(), 0600);
  EXPECT_THAT(message(folder / "pipe"), HasSubstr("found a device or pipe"));
}

TEST(ReadFile, ReadsFilesOfUnknownSize) {
  const TemporaryFolder folder;
  const std::string large(100000, 'x');
  EXPECT_EQ(read_file(folder.put("large", large)), large);
  EXPECT_EQ(read_file(folder.put("empty", "")), "");
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("Pid:"));
}

TEST(WriteFileAtomically, ReplacesAndLeavesNothingElse) {
  const TemporaryFolder folder;
  const fs::path path = folder.put("state.json", "old");
  write_file_atomically(path, "new content");
  EXPECT_EQ(read_file(path), "new content");
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

TEST(WriteFileAtomically, KeepsTheOldFileWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const fs::path path = folder.put("state.json", "old");
  std::string message;
  {
    const FileSizeLimit limit(4096);
    message = message_of<IoError>([&] { write_file_atomically(path, std::string(10000, 'x')); });
  }
  EXPECT_EQ(message, path.string() +
                         ": found file too large after 4096 bytes written, expected 10000 bytes; "
                         "raise the limit on the size of a file (ulimit -f), or choose a folder "
                         "whose file system holds such "
                         "files, then run again");
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

TEST(WriteFileAtomically, MissingFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { write_file_atomically(folder / "none/file", "x"); }),
              HasSubstr("none, expected one; make it, or correct the path"));
}

TEST(AtomicFolder, AppearsOnlyAtCommit) {
  const TemporaryFolder folder;
  const fs::path target = folder / "checkpoint-5";
  {
    AtomicFolder writing(target.string() + "/");
    write_file_atomically(writing.path() / "a", "1");
    fs::create_directory(writing.path() / "deep");
    write_file_atomically(writing.path() / "deep/b", "2");
    EXPECT_FALSE(fs::exists(target));
    EXPECT_EQ(writing.path().parent_path(), folder.path());
    writing.commit();
    EXPECT_THROW(writing.commit(), InternalError);
  }
  EXPECT_EQ(read_file(target / "deep/b"), "2");
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

TEST(AtomicFolder, ReplacesAFolderAsAWhole) {
  const TemporaryFolder folder;
  folder.put("out/old", "1");
  AtomicFolder writing(folder / "out");
  write_file_atomically(writing.path() / "new", "2");
  EXPECT_TRUE(fs::exists(folder / "out/old"));
  writing.commit();
  EXPECT_FALSE(fs::exists(folder / "out/old"));
  EXPECT_EQ(read_file(folder / "out/new"), "2");
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

TEST(AtomicFolder, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  folder.put("out/old", "1");
  {
    AtomicFolder writing(folder / "out");
    write_file_atomically(writing.path() / "new", "2");
  }
  EXPECT_EQ(read_file(folder / "out/old"), "1");
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

// A file system that cannot exchange two names, and from the n-th rename on nothing more.
class TwoRenames : public FileSystem {
 public:
  explicit TwoRenames(int most) : left_(most) {}
  int exchange(const fs::path&, const fs::path&) override { return EINVAL; }
  int rename(const fs::path& from, const fs::path& to) override {
    return left_-- > 0 ? FileSystem::rename(from, to) : EIO;
  }

 private:
  int left_;
};

TEST(AtomicFolder, WhatLiesBesideItStays) {
  for (const bool is_there : {false, true}) {
    const TemporaryFolder folder;
    folder.put("out.old-20251101/model", "a copy");
    folder.put("out.old-1", "a file");
    if (is_there) fs::create_directory(folder / "out");
    AtomicFolder writing(folder / "out");
    write_file_atomically(writing.path() / "new", "2");
    writing.commit();
    EXPECT_EQ(read_file(folder / "out/new"), "2");
    EXPECT_EQ(read_file(folder / "out.old-20251101/model"), "a copy");
    EXPECT_EQ(read_file(folder / "out.old-1"), "a file");
    EXPECT_EQ(count_entries(folder.path()), 3u);
  }
}

TEST(AtomicFolder, AReplacementThatWasCutShortIsUndone) {
  const TemporaryFolder folder;
  const fs::path target = folder / "out";
  folder.put("out/old", "1");
  folder.put("out.old-1/mine", "of the user");
  const auto replace = [&](FileSystem& files) {
    finish_replacement(target, files);
    AtomicFolder writing(target, files);
    write_file_atomically(writing.path() / "new", "2");
    writing.commit();
  };
  TwoRenames cut_short(1);
  EXPECT_THROW(replace(cut_short), IoError);
  EXPECT_FALSE(fs::exists(target));
  const auto found = find_replaced(target.string() + "/");
  ASSERT_TRUE(found);
  EXPECT_EQ(read_file(*found / "old"), "1");
  EXPECT_TRUE(finish_replacement(target));
  EXPECT_EQ(read_file(target / "old"), "1");
  EXPECT_FALSE(finish_replacement(target));
  EXPECT_FALSE(find_replaced(target));
  // Done, but for the removal of the old folder.
  folder.put(".out.replaced-7/old", "0");
  EXPECT_FALSE(finish_replacement(target));
  EXPECT_EQ(count_entries(folder.path()), 2u);
  // Whoever writes there next mends it first.
  TwoRenames again(1);
  EXPECT_THROW(replace(again), IoError);
  TwoRenames whole(100);
  replace(whole);
  EXPECT_EQ(read_file(target / "new"), "2");
  EXPECT_FALSE(fs::exists(target / "old"));
  EXPECT_EQ(read_file(folder / "out.old-1/mine"), "of the user");
  EXPECT_EQ(count_entries(folder.path()), 2u);
}

TEST(RequireWritableFolder, CreatesAndProves) {
  const TemporaryFolder folder;
  require_writable_folder(folder / "a/b/c");
  EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  EXPECT_EQ(count_entries(folder / "a/b/c"), 0u);
  require_writable_folder(folder / "a/b/c");
}

TEST(RequireWritableFolder, NamesWhatIsWrong) {
  const TemporaryFolder folder;
  folder.put("file", "");
  for (const fs::path& path : {folder / "file", folder / "file/below", fs::path("/proc/strata")}) {
    EXPECT_THAT(message_of<IoError>([&] { require_writable_folder(path); }),
                HasSubstr(path.string() + ": found "))
        << path;
  }
}

TEST(RequireWritableFolder, NamesWhatALinkLacks) {
  const TemporaryFolder folder;
  const auto link = folder.path() / "link", target = folder.path() / "target";
  std::filesystem::create_symlink(target, link);
  EXPECT_THAT(
      message_of<IoError>([&] { require_writable_folder(link); }),
      HasSubstr(link.string() + ": found a link to " + target.string() + ", which is not there"));
  EXPECT_THAT(message_of<IoError>([&] { require_writable_folder(link / "run/1"); }),
              HasSubstr(link.string() + ": found a link to " + target.string()));
  std::filesystem::create_directory(target);
  require_writable_folder(link / "run/1");
}

TEST(RequireWritableFolder, AFolderThatTakesNamesButNoBytesIsNamed) {
  const TemporaryFolder folder;
  const FileSizeLimit limit(0);
  EXPECT_THAT(message_of<IoError>([&] { require_writable_folder(folder.path()); }),
              HasSubstr("found file too large when writing to a file in it"));
  EXPECT_EQ(count_entries(folder.path()), 0u);
}

TEST(AvailableBytes, AnswersForPathsThatDoNotExistYet) {
  const TemporaryFolder folder;
  EXPECT_GT(available_bytes(folder / "not/yet/there"), 0u);
  EXPECT_GT(available_bytes("relative-name"), 0u);
}

}  // namespace
}  // namespace strata
