// Oracle: the file's bytes as one string.
#include "strata/base/read_ahead.h"

#include <random>

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "refusing_queue.h"
#include "strata/base/error.h"

namespace strata {
namespace {

using strata::testing::message_of;
using strata::testing::RefusingQueue;
using strata::testing::TemporaryFolder;

std::string noise(size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string read_all(ReadAhead& file, const std::filesystem::path& path, uint64_t begin,
                     uint64_t end) {
  file.start(path, begin, end);
  std::string found;
  for (auto part = file.next(); !part.empty(); part = file.next()) {
    found.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  EXPECT_TRUE(file.next().empty());
  return found;
}

TEST(ReadAhead, EveryRangeIsTheFilesBytes) {
  const TemporaryFolder folder;
  constexpr size_t kBlock = 8192;
  const std::string content = noise(10 * kBlock + 1234);
  const auto path = folder.put("file", content);
  const auto other = folder.put("other", content.substr(7));
  for (const bool past_cache : {true, false}) {
    ReadAhead file({.block_bytes = kBlock, .num_blocks = 3, .past_cache = past_cache});
    for (const auto& [begin, end] : std::vector<std::pair<size_t, size_t>>{
             {0, content.size()},
             {0, kBlock},
             {0, 1},
             {5, 5},
             {4095, 4097},
             {4096, 8192},
             {kBlock - 1, 9 * kBlock + 77},
             {10 * kBlock, content.size()},         // whole pages and the last, partial one
             {10 * kBlock + 1200, content.size()},  // the partial one alone
             {content.size() - 1, content.size()}}) {
      EXPECT_EQ(read_all(file, path, begin, end), content.substr(begin, end - begin))
          << begin << " to " << end;
    }
    EXPECT_EQ(read_all(file, other, 3, 20'000), content.substr(10, 20'000 - 3));
  }
}

TEST(ReadAhead, ARangeMayBeLeftInTheMiddle) {
  const TemporaryFolder folder;
  const std::string content = noise(300'000);
  const auto path = folder.put("file", content);
  ReadAhead file({.block_bytes = 4096, .num_blocks = 2});
  for (uint64_t begin = 0; begin < 200'000; begin += 33'333) {
    file.start(path, begin, content.size());
    const auto part = file.next();
    const std::string_view found(reinterpret_cast<const char*>(part.data()), part.size());
    EXPECT_EQ(found, std::string_view(content).substr(begin, part.size()));
  }
}

// Every request in turn, and all from it on, of a file system that refuses direct transfers late.
TEST(ReadAhead, WhatIsRefusedAtTransferIsReadThroughThePageCache) {
  const TemporaryFolder folder;
  const std::string content = noise(9 * 8192 + 321);
  const auto path = folder.put("file", content);
  int num_requests = 0;
  const auto read_with = [&](const std::function<int(int)>& refusal) {
    ReadAhead file({.block_bytes = 8192, .num_blocks = 3, .open_queue = [&] {
                      return std::make_unique<RefusingQueue>(refusal, &num_requests);
                    }});
    return read_all(file, path, 5, content.size());
  };
  ASSERT_EQ(read_with([](int) { return 0; }), content.substr(5));
  const int all = num_requests;
  ASSERT_GE(all, 9);
  for (const int error : {EINVAL, EOPNOTSUPP, EIO}) {
    for (int at = 0; at < all; ++at) {
      EXPECT_EQ(read_with([&](int n) { return n == at ? error : 0; }), content.substr(5)) << at;
      EXPECT_EQ(read_with([&](int n) { return n >= at ? error : 0; }), content.substr(5)) << at;
    }
  }
}

TEST(ReadAhead, AFileThatIsTooShortIsAnError) {
  const TemporaryFolder folder;
  const auto path = folder.put("file", noise(20'000));
  ReadAhead file({.block_bytes = 4096, .num_blocks = 2});
  EXPECT_NE(message_of<IoError>([&] { file.start(path, 0, 20'001); }).find("found its end"),
            std::string::npos);
  // Cut while it is read: what was on its way may still arrive, what comes later cannot.
  file.start(path, 0, 20'000);
  file.next();
  std::filesystem::resize_file(path, 5000);
  const std::string message = message_of<IoError>([&] {
    while (!file.next().empty()) {
    }
  });
  EXPECT_NE(message.find("found its end"), std::string::npos) << message;
  EXPECT_NE(message_of<IoError>([&] { file.start(folder / "none", 0, 1); }), "");
}

}  // namespace
}  // namespace strata
