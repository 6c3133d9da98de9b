// Oracle: the check value of CRC-32C (RFC 3720), and the layout of TFRecords and of protocol
// buffers, read here by hand; tests/cli/test_tensorboard.py reads a run's file with Google's
// library.
#include "strata/report/tensorboard_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::report {
namespace {

template <typename T>
T number_at(const std::string& bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

uint32_t masked(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

// The events of a file whose sums are all right.
std::vector<std::string> events_of(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size();) {
    const auto size = number_at<uint64_t>(bytes, at);
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 8), masked(bytes.substr(at, 8)));
    events.push_back(bytes.substr(at + 12, size));
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 12 + size), masked(events.back()));
    at += 16 + size;
  }
  return events;
}

TEST(TensorboardFile, SumsAreCastagnolis) { EXPECT_EQ(crc32c("123456789"), 0xe3069283u); }

TEST(TensorboardFile, RecordsHoldNamesStepsAndNumbers) {
  const testing::TemporaryFolder folder;
  TensorboardFile file(folder.path() / "runs");
  file.append({{"loss", 0.5}, {"eval_loss", 2}, {"step", 300}, {"note", "no number"}}, 300);
  const std::vector<std::string> events = events_of(file.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(
      events[0].ends_with("\x1a\x0d"
                          "brain.Event:2"));
  // wall_time, then step 300 as a varint, then a summary of two values.
  EXPECT_EQ(events[1].substr(9, 3), "\x10\xac\x02");
  const std::string loss = "\x0a\x0atrain/loss\x15" + std::string("\0\0\0\x3f", 4);
  const std::string eval_loss =
      "\x0a\x09"
      "eval/loss\x15" +
      std::string("\0\0\0\x40", 4);
  const auto value = [](const std::string& text) {
    return "\x0a" + std::string(1, static_cast<char>(text.size())) + text;
  };
  const std::string summary = value(loss) + value(eval_loss);
  EXPECT_EQ(events[1].substr(12),
            "\x2a" + std::string(1, static_cast<char>(summary.size())) + summary);
}

TEST(TensorboardFile, SaysWhereItCannotBe) {
  const testing::TemporaryFolder folder;
  write_file_atomically(folder.path() / "file", "");
  EXPECT_THROW(TensorboardFile(folder.path() / "file" / "runs"), IoError);
}

}  // namespace
}  // namespace strata::report
