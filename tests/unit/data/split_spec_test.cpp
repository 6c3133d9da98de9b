// Oracle: datasets' ReadInstruction (its rounding rules, and values computed with it by hand);
// numpy's Generator.choice for mixtures (tests/parity/test_sources.py compares both with the
// packages).
#include "strata/data/files/split_spec.h"

#include <cstdlib>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/data/files/data_sets.h"
#include "strata/data/files/folder_patterns.h"

namespace strata::data {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Range = std::pair<int64_t, int64_t>;

Range range_of(const std::string& text, int64_t num_rows) {
  return parse_split(text).at(0).range(num_rows);
}

TEST(SplitSpec, RangesAreTheReferences) {
  EXPECT_EQ(range_of("train", 7), Range(0, 7));
  EXPECT_EQ(range_of("train[:3]", 7), Range(0, 3));
  EXPECT_EQ(range_of("train[-2:]", 7), Range(5, 7));
  EXPECT_EQ(range_of("train[1_0:20]", 15), Range(10, 15));
  EXPECT_EQ(range_of("train[5:2]", 7), Range(5, 5));
  EXPECT_EQ(range_of("train[:50%]", 7), Range(0, 4));  // 3.5 to even
  EXPECT_EQ(range_of("train[50%:]", 5), Range(2, 5));  // 2.5 to even
  EXPECT_EQ(range_of("train[-10%:]", 20), Range(18, 20));
  EXPECT_EQ(range_of("train[-100:]", 7), Range(0, 7));
}

// A folder of small files must not take time that grows with the square of their number.
TEST(SplitSpec, ManyFilesAreSortedIntoSplits) {
  std::vector<std::string> files;
  for (int i = 0; i < 100'000; ++i) files.push_back(fmt::format("train/part-{:06}.jsonl", i));
  EXPECT_EQ(split_by_words(files).at("train"), files);
}

TEST(SplitSpec, HasParts) {
  const auto parts = parse_split("train[:10%] + test[5:] +valid");
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[1].split, "test");
  EXPECT_TRUE(parts[2].is_whole());
  EXPECT_THAT(split_list(" train[:1] , test,"), ElementsAre("train[:1]", "test"));
}

TEST(SplitSpec, RefusesWhatIsNoSplit) {
  for (const char* text : {"", "train[", "train[5]", "train[a:b]", "train[:101%]", "train[1:50%]",
                           "train[%:]", "tr ain", "train[:9999999999999999999]"}) {
    EXPECT_THAT(message_of<ConfigError>([&] { parse_split(text); }),
                HasSubstr(std::string("splits: found \"") + text + "\""))
        << text;
  }
}

TEST(DataSets, SlicesAndSeveralSets) {
  ::setenv("HF_HUB_OFFLINE", "1", /*overwrite=*/1);
  const TemporaryFolder folder;
  const auto a = folder.put("a.jsonl", "{\"v\": 0}\n{\"v\": 1}\n{\"v\": 2}\n{\"v\": 3}\n").string();
  const auto b = folder.put("b.jsonl", "{\"v\": 10}\n{\"v\": 11}\n").string();
  const auto values = [](const DataRequest& request) {
    std::vector<int> all;
    for (const Row& row : load_data(request).rows) all.push_back(row.fields.at("v").get<int>());
    return all;
  };
  EXPECT_THAT(values({.names = a + ", " + b}), ElementsAre(0, 1, 2, 3, 10, 11));
  EXPECT_THAT(values({.names = a, .split = "train[2:]+train[:1]"}), ElementsAre(2, 3, 0));
  EXPECT_THAT(values({.names = a + "," + b, .split = "train[:50%]"}), ElementsAre(0, 1, 10));
  EXPECT_THAT(message_of<ConfigError>([&] { load_data({.names = b, .split = "train[:10%]"}); }),
              HasSubstr("found no row in train[:10%]"));
  EXPECT_THAT(message_of<IoError>([&] {
                load_data({.names = "someone/else", .hub_cache = folder.path().string()});
              }),
              HasSubstr("datasets--someone--else"));
}

TEST(DataSets, PatternsStandAmongOthersAndMayHoldACommaThemselves) {
  const TemporaryFolder folder;
  folder.put("a-1.jsonl", "{\"v\": 1}\n");
  folder.put("a-2.jsonl", "{\"v\": 2}\n");
  folder.put("b.jsonl", "{\"v\": 3}\n");
  folder.put("c,d-1.jsonl", "{\"v\": 4}\n");
  const std::string at = folder.path().string() + "/";
  const auto values = [&](const std::string& names) {
    std::vector<int> all;
    for (const Row& row : load_data({.names = names}).rows) {
      all.push_back(row.fields.at("v").get<int>());
    }
    return all;
  };
  EXPECT_THAT(values(at + "b.jsonl," + at + "a-*.jsonl"), ElementsAre(3, 1, 2));
  EXPECT_THAT(values(at + "a-?.jsonl, " + at + "b.jsonl"), ElementsAre(1, 2, 3));
  EXPECT_THAT(values(at + "c,d-*.jsonl"), ElementsAre(4));
  EXPECT_THAT(message_of<IoError>([&] { values(at + "b.jsonl," + at + "e-*.jsonl"); }),
              HasSubstr(at + "e-*.jsonl: found no file that matches"));
}

TEST(DataSets, InterleavesUntilOneIsUsedUp) {
  const std::vector<size_t> order = interleave({3, 100}, {1, 1}, 42);
  EXPECT_EQ(std::count(order.begin(), order.end(), 0u), 3);
  EXPECT_EQ(order.back(), 0u);
  EXPECT_THROW(interleave({3, 100}, {1}, 42), ConfigError);
  EXPECT_THROW(interleave({3, 100}, {1, 0}, 42), ConfigError);
}

}  // namespace
}  // namespace strata::data
