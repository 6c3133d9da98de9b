// Oracle: the bytes as one string; a disk that fails each operation in turn (crash_disk.h).
#include "strata/base/write_stream.h"

#include <fcntl.h>

#include <random>

#include <gtest/gtest.h>

#include "../checkpoint/crash_disk.h"
#include "../temporary_folder.h"
#include "refused_calls.h"
#include "strata/base/descriptor.h"

namespace strata {
namespace {

using strata::testing::CrashDisk;
using strata::testing::holds_in_child;
using strata::testing::refuse_call;
using strata::testing::TemporaryFolder;

constexpr size_t kBlock = size_t{4} << 20;

std::string noise(size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

struct Part {
  size_t begin;
  size_t end;
};

// Writes parts of `content`. The errno of the first call that failed.
int write_parts(FileSystem& files, const std::filesystem::path& path, const std::string& content,
                const std::vector<Part>& parts, bool is_direct) {
  const Descriptor buffered(files.create(path));
  if (buffered.get() < 0) return -buffered.get();
  if (const int error = files.reserve(buffered.get(), content.size())) return error;
  const Descriptor direct(is_direct ? files.open_direct(path) : -1);
  WriteStream stream(files, buffered.get(), direct.get());
  for (const auto& [begin, end] : parts) {
    const auto bytes = std::as_bytes(std::span(content)).subspan(begin, end - begin);
    if (const int error = stream.put(bytes, begin)) return error;
  }
  return stream.finish();
}

std::vector<Part> pieces_of(size_t size, size_t piece) {
  std::vector<Part> parts;
  for (size_t at = 0; at < size; at += piece) parts.push_back({at, std::min(at + piece, size)});
  return parts;
}

TEST(WriteStream, EveryByteArrivesWhereItBelongs) {
  const TemporaryFolder folder;
  const std::string content = noise(3 * kBlock + 12'345);
  std::vector<Part> backwards = pieces_of(content.size(), 1'000'003);
  std::ranges::reverse(backwards);
  const std::vector<std::vector<Part>> orders{
      {{0, content.size()}},
      pieces_of(content.size(), kBlock),
      pieces_of(content.size(), 99'991),
      backwards,
      // A header of another writer, then from the middle of a page on.
      {{0, 5000}, {5000, content.size()}},
      {{5000, content.size()}, {0, 5000}},
  };
  for (const auto& parts : orders) {
    for (const bool is_direct : {true, false}) {
      ASSERT_EQ(write_parts(real_file_system(), folder / "f", content, parts, is_direct), 0);
      EXPECT_TRUE(read_file(folder / "f") == content) << parts.size() << is_direct;
    }
  }
  ASSERT_EQ(write_parts(real_file_system(), folder / "f", "few", {{0, 3}}, true), 0);
  EXPECT_EQ(read_file(folder / "f"), "few");
}

TEST(WriteStream, AFailureOfAnyOperationIsToldOrMadeGood) {
  const std::string content = noise(2 * kBlock + 777);
  const std::vector<Part> parts{{100, kBlock + 50}, {kBlock + 50, content.size()}, {0, 100}};
  TemporaryFolder whole;
  CrashDisk counter(whole.path());
  ASSERT_EQ(write_parts(counter, whole / "f", content, parts, true), 0);
  const int operations = counter.num_operations();
  ASSERT_GT(operations, 6);
  int told = 0;
  for (int at = 0; at < operations; ++at) {
    for (const auto fault : {CrashDisk::Fault::kError, CrashDisk::Fault::kShortWrite}) {
      TemporaryFolder folder;
      CrashDisk files(folder.path());
      files.break_at(at, fault);
      if (write_parts(files, folder / "f", content, parts, true) != 0) {
        ++told;
      } else {  // without the direct descriptor it goes on through the page cache
        EXPECT_TRUE(read_file(folder / "f") == content) << at;
      }
    }
  }
  EXPECT_EQ(told, 2 * (operations - 1));
}

// A file system that takes O_DIRECT when a file is opened and refuses it from the n-th such write
// on.
class RefusesDirectWrites : public FileSystem {
 public:
  explicit RefusesDirectWrites(int from) : from_(from) {}
  int open_direct(const std::filesystem::path& path) override {
    return direct_ = FileSystem::open_direct(path);
  }
  size_t write(int descriptor, std::span<const std::byte> data, uint64_t offset) override {
    if (descriptor != direct_) return FileSystem::write(descriptor, data, offset);
    if (num_direct_++ < from_) return FileSystem::write(descriptor, data, offset);
    errno = EINVAL;
    return 0;
  }
  int num_direct() const { return num_direct_; }

 private:
  int from_;
  int direct_ = -1;
  int num_direct_ = 0;
};

TEST(WriteStream, WhatIsRefusedAtTransferIsWrittenThroughThePageCache) {
  const TemporaryFolder folder;
  const std::string content = noise(3 * kBlock + 4321);
  RefusesDirectWrites counter(100);
  ASSERT_EQ(write_parts(counter, folder / "f", content, {{0, content.size()}}, true), 0);
  ASSERT_GT(counter.num_direct(), 2);
  for (int from = 0; from < counter.num_direct(); ++from) {
    RefusesDirectWrites files(from);
    ASSERT_EQ(write_parts(files, folder / "f", content, {{0, content.size()}}, true), 0);
    EXPECT_TRUE(read_file(folder / "f") == content) << from;
    EXPECT_EQ(files.num_direct(), from + 1) << "after a refusal it is not asked again";
  }
}

// Regression: std::system_error went through put(), which answers an errno.
TEST(WriteStream, WritesInPlaceWhereNoThreadCanBeStarted) {
  const TemporaryFolder folder;
  const std::string content = noise(3 * kBlock + 4321);
  EXPECT_TRUE(holds_in_child([&] {
    refuse_call(SYS_clone, EAGAIN);
    refuse_call(SYS_clone3, EAGAIN);
    const auto parts = pieces_of(content.size(), 1'000'003);
    return write_parts(real_file_system(), folder / "f", content, parts, true) == 0;
  }));
  EXPECT_TRUE(read_file(folder / "f") == content);
  EXPECT_TRUE(holds_in_child([&] {
    refuse_call(SYS_clone, EAGAIN);
    refuse_call(SYS_clone3, EAGAIN);
    CrashDisk files(folder.path());
    files.break_at(2, CrashDisk::Fault::kError);  // create, reserve, the first block
    return write_parts(files, folder / "g", content, {{0, content.size()}}, false) == EIO;
  }));
}

}  // namespace
}  // namespace strata
