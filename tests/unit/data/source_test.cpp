// Oracle: the files' known content, and the text of each error.
#include "strata/data/files/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata::data {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
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
      folder.put("x.jsonl", "\xef\xbb\xbf{\"a\": 1}\r\n\n  \n{\"a\": 2, \"b\": null}");
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
      folder.put("x.json", " [\n{\"a\": 1, \"t\": \"],\\\"{\"},\n{\n\"a\": 2} , {\"a\":3}\n]\n");
  const Split split = load_split(file, "train");
  EXPECT_THAT(values_of(split), ElementsAre(1, 2, 3));
  EXPECT_EQ(split.rows[0].line, 2);
  EXPECT_EQ(split.rows[1].line, 3);
  EXPECT_EQ(split.rows[2].line, 4);
  EXPECT_THAT(values_of(load_split(folder.put("y.json", "{\"a\": 1}\n{\"a\": 2}\n"), "train")),
              ElementsAre(1, 2));
}

// Of a name that datasets has no word for; tests/parity/test_sources.py has those that it has.
TEST(LoadSplit, FindsSplitsInTheirPlaces) {
  const TemporaryFolder folder;
  folder.put("demo/part1.jsonl", "{\"a\": 5}\n");
  folder.put("demo/part2.json", "[{\"a\": 6}]");
  EXPECT_THAT(values_of(load_split(folder.path(), "demo")), ElementsAre(5, 6));
  folder.put("data/demo_b.jsonl", "{\"a\": 4}\n");
  folder.put("data/demo.jsonl", "{\"a\": 3}\n");
  folder.put("data/demonstration.jsonl", "{\"a\": 9}\n");
  EXPECT_THAT(values_of(load_split(folder.path(), "demo")), ElementsAre(3, 4));
  folder.put("demo-00001-of-00002.jsonl", "{\"a\": 2}\n");
  folder.put("demo-00000-of-00002.jsonl", "{\"a\": 1}\n");
  EXPECT_THAT(values_of(load_split(folder.path(), "demo")), ElementsAre(1, 2));
  folder.put("demo.jsonl", "{\"a\": 0}\n");
  EXPECT_THAT(values_of(load_split(folder.path(), "demo")), ElementsAre(0));
  folder.put("test.parquet", "");
  folder.put("README.md", "");
  folder.put("dataset_infos.json", "{}");
  EXPECT_THAT(list_splits(folder.path()), ElementsAre("demo", "demonstration", "test"));
}

TEST(LoadSplit, SaysWhichSplitsThereAre) {
  const TemporaryFolder folder;
  const auto file = folder.put("train.jsonl", "{\"a\": 1}\n");
  folder.put("valid.jsonl", "{\"a\": 1}\n");
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(folder.path(), "test"); }),
              HasSubstr("found train, valid, validation, expected a split \"test\""));
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(file, "test"); }),
              HasSubstr("a single file"));
  EXPECT_THROW(load_split(folder.path() / "nothing", "train"), IoError);
}

TEST(LoadSplit, RefusesWhatItCannotRead) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(folder.put("x.xlsx", ""), "train"); }),
              AllOf(HasSubstr("x.xlsx: found a file of an unknown format"), HasSubstr(".parquet"),
                    HasSubstr("; save the sheet as CSV")));
  folder.put("valid-00000-of-00003.jsonl", "{\"a\": 1}\n");
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(folder.path(), "valid"); }),
              HasSubstr("found 1 of the 3 files of split"));
  folder.put("test.jsonl", "{\"a\": 1}\n");
  folder.put("test.json", "{\"a\": 1}\n");
  EXPECT_THAT(message_of<ConfigError>([&] { load_split(folder.path(), "test"); }),
              HasSubstr("found test.json and test.jsonl"));
}

// Oracle: the files that `datasets` takes for the split.
TEST(LoadSplit, LeavesOutNoPackedFile) {
  const TemporaryFolder folder;
  folder.put("train.jsonl", "{\"a\": 1}\n");
  folder.put("notes.zip", "");
  folder.put("test-2.csv.zip", "");
  EXPECT_THAT(values_of(load_split(folder.path(), "train")), ElementsAre(1));
  const auto packed = folder.put("train-2.jsonl.bz2", "");
  for (const auto& path : {folder.path(), packed}) {
    EXPECT_THAT(message_of<ConfigError>([&] { load_split(path, "train"); }),
                AllOf(HasSubstr("train-2.jsonl.bz2: found a file of an unknown format"),
                      HasSubstr("; unpack it first: bunzip2 " + packed.string())));
  }
}

TEST(LoadSplit, TakesTextsThatBeginLikeOtherFiles) {
  const TemporaryFolder folder;
  const Split split = load_split(folder.put("a.csv", "PAR1,a\n0,1\n"), "train");
  EXPECT_EQ(split.rows.at(0).fields.dump(), R"({"PAR1":"0","a":"1"})");
}

TEST(LoadSplit, TakesEndingsInCapitals) {
  const TemporaryFolder folder;
  EXPECT_THAT(values_of(load_split(folder.put("A.JSONL", "{\"a\": 1}\n"), "train")),
              ElementsAre(1));
}

// Oracle: the name that pandas' read_csv gives the index that its to_csv has written.
TEST(LoadSplit, NamesColumnsWithoutANameAsPandasDoes) {
  const TemporaryFolder folder;
  const Split split = load_split(folder.put("a.csv", ",a,\"\"\n0,1,2\n"), "train");
  EXPECT_EQ(split.rows.at(0).fields.dump(), R"({"Unnamed: 0":"0","a":"1","Unnamed: 2":"2"})");
  // Of a table that pandas wrote, read and wrote: a name that is there stays.
  const Split twice = load_split(folder.put("b.csv", ",Unnamed: 0,a\n0,1,2\n"), "train");
  EXPECT_EQ(twice.rows.at(0).fields.dump(), R"({"Unnamed: 0.1":"0","Unnamed: 0":"1","a":"2"})");
}

TEST(LoadSplit, NamesFileAndLineOfABadRow) {
  const TemporaryFolder folder;
  const auto error_of = [&](const std::string& name, const std::string& content) {
    return message_of<FormatError>([&] { load_split(folder.put(name, content), "train"); });
  };
  EXPECT_THAT(error_of("a.jsonl", "{\"a\": 1}\n[1]\n"),
              HasSubstr("a.jsonl:2: found an array, expected a JSON object; "));
  EXPECT_THAT(error_of("b.jsonl", "{\"a\": 1}\n\n{\"a\": \n"),
              AllOf(HasSubstr("b.jsonl:3:"), HasSubstr("one object on one line")));
  EXPECT_THAT(error_of("c.json", "[{\"a\": 1},\n 7]"), HasSubstr("c.json:2: found a number"));
  EXPECT_THAT(error_of("d.json", "[{\"a\": 1},\n{\"a\": 2"), HasSubstr("d.json:2: found the end"));
  EXPECT_THAT(error_of("e.json", "[{\"a\": 1},\n]"),
              HasSubstr("e.json:2: found a comma after the last row"));
  EXPECT_THAT(error_of("f.json", "[{\"a\": 1}]\n x"), HasSubstr("after the array"));
  EXPECT_THAT(error_of("python.jsonl", "{'a': 'b'}\n"),
              HasSubstr("single quotes are Python's: write each row with json.dumps"));
  EXPECT_THAT(error_of("one_line.json", "[{\"a\": \"\xc3\xa4\"}, {\"a\": x}]"),
              AllOf(HasSubstr("one_line.json:1:20: found 'x'"), HasSubstr("; it is in row 2")));
  EXPECT_THAT(error_of("one_line.json", "[{\"a\": 1}, 2]"),
              HasSubstr("one_line.json:1 (row 2): found a number"));
  EXPECT_THAT(error_of("wrapped.json", "{\n \"data\": [{\"a\": 1}]}\n"),
              AllOf(HasSubstr("wrapped.json: found one object around a list of rows (data)"),
                    HasSubstr("jq -c '.[\"data\"][]' ")));
  EXPECT_THAT(error_of("pretty.json", "{\n \"a\": 1\n}\n{\n \"a\": 2\n}"),
              HasSubstr("pretty.json:1:2:"));
  EXPECT_THAT(error_of("pretty.json", "{\n \"messages\": [{\"role\": \"user\"}]\n}"),
              HasSubstr("pretty.json: found one object over several lines"));
  EXPECT_THAT(error_of("g.jsonl", " \n\n"), HasSubstr("g.jsonl: found no rows"));
  EXPECT_THAT(error_of("u.txt", "\xff\xfe"), HasSubstr("found utf-16"));
  EXPECT_THAT(error_of("u.jsonl", "\xfe\xff"), HasSubstr("iconv -f UTF-16"));
  // Without a mark: as Windows writes it, and as networks do. Zeros alone, and texts with some, are
  // none.
  const auto padded = [](std::string_view text, bool is_little) {
    std::string wide;
    for (const char c : text) (is_little ? (wide += c) += '\0' : (wide += '\0') += c);
    return wide;
  };
  EXPECT_THAT(error_of("w.jsonl", padded("{\"a\": \"b\"}\n", true)),
              HasSubstr("w.jsonl: found utf-16 (by the zeros among its first bytes), expected "
                        "utf-8; convert it: iconv -f UTF-16LE -t UTF-8"));
  EXPECT_THAT(error_of("w.txt", padded("cat", false)), HasSubstr("iconv -f UTF-16BE"));
  EXPECT_THAT(error_of("w.json", std::string(8, '\0')), HasSubstr("the control character 0x00"));
  EXPECT_THAT(error_of("h.json", "[]"), HasSubstr("h.json: found no rows"));
  EXPECT_THAT(error_of("i.jsonl", ""), HasSubstr("i.jsonl: found no rows"));
  EXPECT_THAT(error_of("j.csv", ""), HasSubstr("j.csv: found an empty file"));
  EXPECT_THAT(error_of("k.csv", "a,b\n1,2\n\"3\n\",4,5\n"),
              HasSubstr("k.csv:3: found 3 fields, expected 2"));
  EXPECT_THAT(error_of("l.csv", "a,b\n1,\"2\n3,4\n"), HasSubstr("l.csv:2: found the end"));
  EXPECT_THAT(error_of("m.csv", "a,a\n1,2\n"), HasSubstr("column \"a\" twice"));
  EXPECT_THAT(error_of("n.csv", "a\nx\n\xff\n"), HasSubstr("n.csv:3: found bytes"));
  EXPECT_THAT(error_of("o.txt", "x\n\xc3(\n"), HasSubstr("o.txt:2: found bytes"));
  EXPECT_THAT(error_of("p.jsonl", "{\"a\": \"\xff\"}\n"), HasSubstr("p.jsonl:1:"));
  EXPECT_THAT(error_of("q.jsonl.gz", "{}"), HasSubstr("remove the ending .gz from its name"));
  EXPECT_THAT(error_of("r.jsonl.zst", "[{}]"), HasSubstr("remove the ending .zst from its name"));
  EXPECT_THAT(error_of("q.csv.gz", "a,b\n"), HasSubstr("q.csv.gz: found"));
  EXPECT_THAT(error_of("w.jsonl", "\x1f\x8b\b"), HasSubstr("found a gzip file (by its first"));
  EXPECT_THAT(error_of("x.csv", "PK\x03\x04"), HasSubstr("a table of a spreadsheet as .csv"));
  EXPECT_THAT(error_of("y.json", "PAR1\x15\x04"), HasSubstr("a name that ends with .parquet"));
  EXPECT_THAT(error_of("z.jsonl", "{\"a\": 1}\n{\"b\": 1, \"b\": 2}\n"),
              HasSubstr("z.jsonl:2:10: found the key \"b\" again"));
  EXPECT_THAT(error_of("s.jsonl.gz", ""), HasSubstr("s.jsonl.gz: found nothing"));
  EXPECT_THAT(error_of("t.parquet", "PAR1 and more"), HasSubstr("t.parquet: found"));
  EXPECT_THAT(error_of("u.arrow", "ARROW1 and more"), HasSubstr("u.arrow: found"));
  EXPECT_THAT(error_of("v.arrow", "no arrow"), HasSubstr("v.arrow: found"));
}

// Any bytes: rows or an error, nothing else. Changes are a function of the round's number.
TEST(LoadSplit, AnyBytesGiveRowsOrAnError) {
  const TemporaryFolder folder;
  const std::string json =
      "{\"a\": \"x \\u00e9\\n\", \"m\": [{\"role\": \"user\", \"n\": -1.5e3}]}\n[1]\n{\"b\": "
      "null}\n";
  const std::pair<const char*, std::string> kinds[] = {
      {"a.jsonl", json},
      {"a.json", "[" + json.substr(0, json.find('\n')) + ", {\"c\": true}]"},
      {"a.csv", "a,b\n\"x\"\"\n\",2\n,\n"},
      {"a.txt", "one\ntwo\xc3\xa9\n"}};
  std::mt19937 random(5);
  int good = 0;
  for (int round = 0; round < 4000; ++round) {
    auto [name, text] = kinds[round % std::size(kinds)];
    for (uint32_t i = 0; i <= random() % 3; ++i) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) text.resize(at + 1);
      text[random() % text.size()] =
          random() % 2 == 0 ? static_cast<char>(random()) : "\"{}[],:\n\\u\r"[random() % 12];
    }
    try {
      load_split(folder.put(name, text), "train", {.skip_bad_rows = round % 3 == 0});
      ++good;
    } catch (const FormatError&) {
    }
  }
  EXPECT_GT(good, 100);
}

TEST(LoadSplit, ReadsDelimitedText) {
  const TemporaryFolder folder;
  const Split csv = load_split(
      folder.put("a.csv", "text,\"n\"\r\n\"a, \"\"b\"\"\nc\",1\r\n,x\n\nlast,\"\""), "train");
  ASSERT_EQ(csv.rows.size(), 3u);
  EXPECT_EQ(csv.rows[0].fields, Json({{"text", "a, \"b\"\nc"}, {"n", "1"}}));
  EXPECT_EQ(csv.rows[1].fields, Json({{"text", nullptr}, {"n", "x"}}));
  EXPECT_EQ(csv.rows[1].line, 4);
  EXPECT_EQ(csv.rows[2].fields, Json({{"text", "last"}, {"n", nullptr}}));
  const Split tsv = load_split(folder.put("a.tsv", "a\tb\n1\t2,3\n"), "train");
  EXPECT_EQ(tsv.rows.at(0).fields, Json({{"a", "1"}, {"b", "2,3"}}));
  const Split text = load_split(folder.put("a.txt", "one\r\n\n two"), "train");
  ASSERT_EQ(text.rows.size(), 3u);
  EXPECT_EQ(text.rows[0].fields, Json({{"text", "one"}}));
  EXPECT_EQ(text.rows[1].fields, Json({{"text", ""}}));
  EXPECT_EQ(text.rows[2].fields, Json({{"text", " two"}}));
}

TEST(LoadSplit, SaysWhichSeparatorItFound) {
  const TemporaryFolder folder;
  const auto error_of = [&](const char* content) {
    const auto file = folder.put("a.csv", content);
    return message_of<FormatError>([&] { load_split(file, "train"); });
  };
  EXPECT_THAT(error_of("text;n\na, b;1\n"),
              AllOf(HasSubstr("a.csv:1: found \"text;n\" as the only column"),
                    HasSubstr("with commas instead of semicolons")));
  EXPECT_THAT(error_of("text\tn\na\t1\n"), HasSubstr("a name that ends with .tsv"));
}

TEST(LoadSplit, MatchesPatterns) {
  const TemporaryFolder folder;
  folder.put("b.jsonl", "{\"a\": 2}\n");
  folder.put("a.jsonl", "{\"a\": 1}\n");
  folder.put("c.txt", "x\n");
  EXPECT_THAT(values_of(load_split(folder.path() / "*.jsonl", "train")), ElementsAre(1, 2));
  EXPECT_THROW(load_split(folder.path() / "*.csv", "train"), IoError);
}

TEST(LoadSplit, CountsBadRowsWhereTheyMayBeSkipped) {
  const TemporaryFolder folder;
  const auto file = folder.put("a.jsonl", "{\"a\": 1}\nnonsense\n[2]\n{\"a\": 3}\n");
  const Split split = load_split(file, "train", {.skip_bad_rows = true});
  EXPECT_THAT(values_of(split), ElementsAre(1, 3));
  EXPECT_EQ(split.bad_rows.count, 2);
  EXPECT_THAT(split.bad_rows.first, HasSubstr("a.jsonl:2:"));
  const auto all_bad = folder.put("b.jsonl", "x\n");
  EXPECT_THAT(
      message_of<FormatError>([&] { load_split(all_bad, "train", {.skip_bad_rows = true}); }),
      HasSubstr("found no rows that can be read (the first: "));
}

// Oracle: the rows of the whole split. Arrow's formats: tests/parity/test_sources.py.
TEST(ReadSplit, PassesOverRowsBeforeTheFirst) {
  const TemporaryFolder folder;
  const std::vector<std::filesystem::path> files = {
      folder.put("a.jsonl", "\xef\xbb\xbf{\"a\": 1}\n\n {\"a\": 2}\r\n{\"a\": 3}\n \n{\"a\": 4}"),
      folder.put("b.json", "[{\"a\": 1}, {\"a\": \"],\\\"\"},\n\n{\"a\": 3},{\"a\": 4}\n]"),
      folder.put("c.csv", "a,b\n1,\"x\n\ny\"\n\n2,\n3,z\n\"\",4\n"),
      folder.put("d.txt", "1\n2\r\n\n4")};
  for (const auto& file : files) {
    const Split whole = load_split(file, "train");
    ASSERT_EQ(whole.rows.size(), 4u) << file;
    for (const bool skips : {false, true}) {
      const LoadOptions options{.skip_bad_rows = skips};
      for (int64_t first = 0; first <= 5; ++first) {
        std::vector<Row> found;
        const auto take = [&](RowBatch batch) {
          std::ranges::move(batch.rows, std::back_inserter(found));
          return true;
        };
        const ReadResult read = read_split(file, "train", options, take, first);
        EXPECT_EQ(read.num_rows, 4);
        ASSERT_EQ(static_cast<int64_t>(found.size()), std::max<int64_t>(0, 4 - first)) << file;
        for (size_t i = 0; i < found.size(); ++i) {
          const Row& row = whole.rows[static_cast<size_t>(first) + i];
          EXPECT_EQ(found[i].fields, row.fields);
          EXPECT_EQ(found[i].where(), row.where());
        }
        EXPECT_EQ(count_rows(file, "train", options, first), std::min<int64_t>(first, 4));
      }
    }
  }
}

TEST(ReadSplit, LooksIntoNoRowThatItPassesOver) {
  const TemporaryFolder folder;
  const auto file = folder.put("a.jsonl", "{\"a\": 1}\nnonsense\n{\"a\": 3}\n{\"a\": 4}\n");
  const auto first_line = [&](const LoadOptions& options, int64_t first) {
    int64_t line = 0;
    const auto take = [&](const RowBatch& batch) {
      line = batch.rows.front().line;
      return true;
    };
    read_split(file, "train", options, take, first);
    return line;
  };
  EXPECT_EQ(first_line({}, 2), 3);
  EXPECT_THROW(first_line({}, 1), FormatError);
  EXPECT_EQ(count_rows(file, "train", {}, 100), 4);
  // A row that is left out counts as none.
  EXPECT_EQ(first_line({.skip_bad_rows = true}, 2), 4);
  EXPECT_EQ(count_rows(file, "train", {.skip_bad_rows = true}, 100), 3);
}

TEST(LoadSplit, RenamesColumns) {
  const TemporaryFolder folder;
  const auto file = folder.put("a.jsonl", "{\"question\": 1, \"b\": 2}\n{\"b\": 3}\n");
  const Split split = load_split(file, "train", {.columns = {{"prompt", "question"}}});
  EXPECT_EQ(*split.rows[0].find("prompt"), Json(1));
  EXPECT_EQ(split.rows[0].find("question"), nullptr);
  const Split swapped =
      load_split(file, "train", {.columns = {{"b", "question"}, {"question", "b"}}});
  EXPECT_EQ(swapped.rows[0].fields.size(), 2U);
  EXPECT_EQ(*swapped.rows[0].find("question"), Json(2));
  EXPECT_EQ(*swapped.rows[0].find("b"), Json(1));
  EXPECT_THAT(
      message_of<ConfigError>([&] {
        load_split(file, "train", {.columns = {{"prompt", "nothing"}}});
      }),
      HasSubstr("found no column \"nothing\" in " + file.string() + ":1 (it has: question, b)"));
}

}  // namespace
}  // namespace strata::data
