// Oracle: the files' known content, and the text of each error.
#include "strata/data/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "temporary_folder.h"

namespace strata::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::vector<int> values_of(const Split& split) {
  std::vector<int> values;
  for (const Row& row : split.rows) values.push_back(row.fields.at("a").get<int>());
  return values;
}

TEST(LoadSplit, ReadsLinesAndRemembersWhereTheyStand) {
  const TemporaryFolder folder;
  const auto file =
      folder.write("x.jsonl", "\xef\xbb\xbf{\"a\": 1}\r\n\n  \n{\"a\": 2, \"b\": null}");
  const Split split = load_split(file, "train");
  EXPECT_THAT(values_of(split), ElementsAre(1, 2));
  EXPECT_THAT(split.files, ElementsAre(file));
  EXPECT_EQ(split.rows[1].line, 4);
  EXPECT_THAT(split.rows[1].where(), EndsWith("x.jsonl:4"));
  EXPECT_NE(split.rows[1].find("a"), nullptr);
  EXPECT_EQ(split.rows[1].find("b"), nullptr);
  EXPECT_EQ(split.rows[1].find("c"), nullptr);
}

TEST(LoadSplit, ReadsArrays) {
  const TemporaryFolder folder;
  const auto file =
      folder.write("x.json", " [\n{\"a\": 1, \"t\": \"],\\\"{\"},\n{\n\"a\": 2} , {\"a\":3}\n]\n");
  const Split split = load_split(file, "train");
  EXPECT_THAT(values_of(split), ElementsAre(1, 2, 3));
  EXPECT_EQ(split.rows[0].line, 2);
  EXPECT_EQ(split.rows[1].line, 3);
  EXPECT_EQ(split.rows[2].line, 4);
  EXPECT_THAT(values_of(load_split(folder.write("y.json", "{\"a\": 1}\n{\"a\": 2}\n"), "train")),
              ElementsAre(1, 2));
}

TEST(LoadSplit, FindsSplitsInTheirPlaces) {
  const TemporaryFolder folder;
  folder.write("train/part1.jsonl", "{\"a\": 5}\n");
  folder.write("train/part2.json", "[{\"a\": 6}]");
  EXPECT_THAT(values_of(load_split(folder.path(), "train")), ElementsAre(5, 6));
  folder.write("data/train_b.jsonl", "{\"a\": 4}\n");
  folder.write("data/train.jsonl", "{\"a\": 3}\n");
  folder.write("data/training.jsonl", "{\"a\": 9}\n");
  EXPECT_THAT(values_of(load_split(folder.path(), "train")), ElementsAre(3, 4));
  folder.write("train-00001-of-00002.jsonl", "{\"a\": 2}\n");
  folder.write("train-00000-of-00002.jsonl", "{\"a\": 1}\n");
  EXPECT_THAT(values_of(load_split(folder.path(), "train")), ElementsAre(1, 2));
  folder.write("train.jsonl", "{\"a\": 0}\n");
  EXPECT_THAT(values_of(load_split(folder.path(), "train")), ElementsAre(0));
  folder.write("test.parquet", "");
  EXPECT_THAT(list_splits(folder.path()), ElementsAre("train", "training"));
}

TEST(LoadSplit, SaysWhichSplitsThereAre) {
  const TemporaryFolder folder;
  const auto file = folder.write("train.jsonl", "{\"a\": 1}\n");
  folder.write("valid.jsonl", "{\"a\": 1}\n");
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(folder.path(), "test"); }),
              HasSubstr("found train, valid, expected a split \"test\""));
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(file, "test"); }),
              HasSubstr("a single file"));
  EXPECT_THROW(load_split(folder.path() / "nothing", "train"), IoError);
}

TEST(LoadSplit, RefusesWhatItCannotRead) {
  const TemporaryFolder folder;
  folder.write("train.parquet", "PAR1");
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(folder.path(), "train"); }),
              AllOf(HasSubstr("train.parquet: found a parquet file"), HasSubstr("JSON lines")));
  folder.write("valid-00000-of-00003.jsonl", "{\"a\": 1}\n");
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(folder.path(), "valid"); }),
              HasSubstr("found 1 of the split's files, expected 3"));
  folder.write("test.jsonl", "{\"a\": 1}\n");
  folder.write("test.json", "{\"a\": 1}\n");
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(folder.path(), "test"); }),
              HasSubstr("found test.json and test.jsonl"));
}

TEST(LoadSplit, NamesFileAndLineOfABadRow) {
  const TemporaryFolder folder;
  const auto error_of = [&](const std::string& name, const std::string& content) {
    return message_of<FormatError>([&] { load_split(folder.write(name, content), "train"); });
  };
  EXPECT_THAT(error_of("a.jsonl", "{\"a\": 1}\n[1]\n"),
              HasSubstr("a.jsonl:2: found an array, expected a JSON object; "));
  EXPECT_THAT(error_of("b.jsonl", "{\"a\": 1}\n\n{\"a\": \n"),
              AllOf(HasSubstr("b.jsonl:3:"), HasSubstr("one object on one line")));
  EXPECT_THAT(error_of("c.json", "[{\"a\": 1},\n 7]"), HasSubstr("c.json:2: found a number"));
  EXPECT_THAT(error_of("d.json", "[{\"a\": 1},\n{\"a\": 2"), HasSubstr("d.json:2: found the end"));
  EXPECT_THAT(error_of("e.json", "[{\"a\": 1},\n]"), HasSubstr("e.json:2"));
  EXPECT_THAT(error_of("f.json", "[{\"a\": 1}]\n x"), HasSubstr("after the array"));
  EXPECT_THAT(error_of("g.jsonl", " \n\n"), HasSubstr("g.jsonl: found no rows"));
  EXPECT_THAT(error_of("h.json", "[]"), HasSubstr("h.json: found no rows"));
  EXPECT_THAT(error_of("i.jsonl", ""), HasSubstr("i.jsonl: found no rows"));
}

}  // namespace
}  // namespace strata::data
