// Oracle: transformers' run_classification.py, written out for a tokenizer of bytes; what was
// written, for what is read back from a file.
#include "strata/data/rows/labelled_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prepared_rows.h"
#include "strata/base/error.h"
#include "strata/data/collate.h"
#include "strata/data/store/token_store.h"

namespace strata::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LabelledRowTest : public PreparedRows {
 protected:
  LabelledRowTest() { options_.labelled = LabelledOptions{}; }

  static std::string line(const std::string& text, const Json& label) {
    return Json{{"text", text}, {"label", label}}.dump();
  }
  static std::vector<std::string> names_of(const DatasetStats& stats) {
    std::vector<std::string> names;
    for (const SeenLabel& label : stats.labels) names.push_back(label.name);
    return names;
  }
};

TEST_F(LabelledRowTest, ClassesAreNumberedAsTheyCome) {
  const Dataset found = prepare_lines({line("ab", "x"), line("c", "w"), line("d", "x")});
  EXPECT_EQ(found.label_kind, LabelKind::kClass);
  EXPECT_THAT(names_of(found), ElementsAre("x", "w"));
  EXPECT_EQ(found.labels[0].count, 2);
  EXPECT_EQ(found.labels[1].first, "f.jsonl:2");
  EXPECT_EQ(text_of(found.rows[0]), "<s>ab");
  EXPECT_THAT(found.rows[1].row_targets, ElementsAre(1));
  EXPECT_THAT(found.rows[2].row_targets, ElementsAre(0));
  EXPECT_EQ(found.num_targets, 3);
}

TEST_F(LabelledRowTest, NamesAreAsPythonPrintsThem) {
  EXPECT_THAT(names_of(prepare_lines({line("a", 3), line("b", -1)})), ElementsAre("3", "-1"));
  EXPECT_THAT(names_of(prepare_lines({line("a", true)})), ElementsAre("True"));
  options_.labelled->are_numbers = false;
  EXPECT_THAT(names_of(prepare_lines({line("a", 1.0)})), ElementsAre("1.0"));
}

TEST_F(LabelledRowTest, ListsAreSeveralLabels) {
  const Dataset found =
      prepare_lines({line("a", {"x", "y"}), line("b", Json::array()), line("c", {"y", "y"})});
  EXPECT_EQ(found.label_kind, LabelKind::kLabels);
  EXPECT_THAT(found.rows[0].row_targets, ElementsAre(0, 1));
  EXPECT_THAT(found.rows[1].row_targets, IsEmpty());
  EXPECT_THAT(found.rows[2].row_targets, ElementsAre(1));
}

TEST_F(LabelledRowTest, FractionsAreNumbers) {
  const Dataset found = prepare_lines({line("a", 0.5), line("b", 2), line("c", "-1e2")});
  EXPECT_EQ(found.label_kind, LabelKind::kNumber);
  EXPECT_THAT(found.rows[0].row_targets, ElementsAre(0.5));
  EXPECT_THAT(found.rows[1].row_targets, ElementsAre(2));
  EXPECT_THAT(found.rows[2].row_targets, ElementsAre(-100));
  options_.labelled->are_numbers = true;
  EXPECT_EQ(prepare_lines({line("a", 3)}).label_kind, LabelKind::kNumber);
}

TEST_F(LabelledRowTest, ColumnsAreJoined) {
  options_.labelled = LabelledOptions{
      .text_columns = {"a", "b"}, .delimiter = "|", .label_column = "kind", .are_numbers = {}};
  const Dataset found = prepare_lines({R"({"a": "x", "b": "y", "kind": 1, "text": "z"})"});
  EXPECT_EQ(text_of(found.rows[0]), "<s>x|y");
  EXPECT_THAT(found.unused_columns, ElementsAre(std::pair<const std::string, int64_t>("text", 1)));
}

TEST_F(LabelledRowTest, LongTextsAreCutOrLeftOut) {
  options_.max_length = 3;
  const Dataset cut = prepare_lines({line("abcd", 0), line("a", 1)});
  EXPECT_EQ(text_of(cut.rows[0]), "<s>ab");
  EXPECT_EQ(cut.num_long, 1);
  options_.long_rows = "drop";
  const Dataset dropped = prepare_lines({line("abcd", 0), line("a", 1)});
  ASSERT_EQ(dropped.rows.size(), 1u);
  EXPECT_THAT(names_of(dropped), ElementsAre("1"));
}

// As of a set of the wanted rows alone.
TEST_F(LabelledRowTest, RowsThatNobodyWantsTellNoLabels) {
  const std::vector<std::string> wanted = {line("ab", "x"), line("c", "w")};
  const Dataset alone = prepare_lines(wanted);
  std::vector<std::string> lines = wanted;
  lines.push_back(line("defgh", "a"));
  lines.push_back(line("i", "x"));
  lines.push_back(line("j", Json::object()));
  options_.max_rows = 2;
  const Dataset found = prepare_lines(lines);
  ASSERT_EQ(found.rows.size(), 2u);
  EXPECT_EQ(found.labels, alone.labels);
  EXPECT_EQ(found.num_targets, 2);
}

TEST_F(LabelledRowTest, WhatIsNoLabelIsNamed) {
  EXPECT_THAT(error_of<FormatError>({R"({"text": "a"})"}),
              HasSubstr("f.jsonl:1: found no label in \"label\" or \"labels\""));
  EXPECT_THAT(error_of<FormatError>({line("a", 1), line("b", 0.5)}),
              HasSubstr("f.jsonl:2: found 0.5 in \"label\", expected a label"));
  EXPECT_THAT(error_of<FormatError>({line("a", 0.5), line("b", "x")}),
              HasSubstr("f.jsonl:2: found \"x\" in \"label\", expected a finite number"));
  EXPECT_THAT(error_of<FormatError>({line("a", "0.5")}), HasSubstr("add --do_regression"));
  EXPECT_THAT(error_of<FormatError>({line("a", {"x"}), line("b", "x")}),
              HasSubstr("expected a list of labels"));
  options_.labelled->hides_labels = true;
  for (const Json& label : {Json(-1), Json(-1.0), Json("-1")}) {
    EXPECT_THAT(
        error_of<FormatError>({line("a", 1), line("b", label)}),
        HasSubstr("f.jsonl:2: found -1 in \"label\", which says that the row has no label"));
  }
}

TEST_F(LabelledRowTest, NumbersBeyond64BitsAreShownByTheirDigits) {
  const auto big = [](const std::string& label) {
    return R"({"text": "a", "label": )" + label + "}";
  };
  EXPECT_EQ(error_of<FormatError>({line("a", 1), big("36893488147419103232")}),
            "f.jsonl:2: found 36893488147419103232 in \"label\", expected a label (a text, a whole "
            "number of at most 64 bits, true or false); write it in quotes");
  EXPECT_THAT(error_of<FormatError>({big("[36893488147419103232]")}),
              HasSubstr("f.jsonl:1: found 36893488147419103232 in \"label\", expected a label"));
  EXPECT_THAT(error_of<FormatError>({big("-" + std::string(50, '7'))}),
              HasSubstr("found -" + std::string(39, '7') + "... in"));
  options_.labelled->are_numbers = true;
  const Dataset numbers = prepare_lines({big("36893488147419103232"), line("b", 1)});
  EXPECT_THAT(numbers.rows[0].row_targets, ElementsAre(0x1p65f));
  EXPECT_THAT(
      error_of<FormatError>({big("1" + std::string(39, '0'))}),
      HasSubstr("found 1" + std::string(39, '0') + " in \"label\", expected a finite number"));
}

TEST_F(LabelledRowTest, APairIsATextBehindAnother) {
  const auto pair = [](const char* first, const char* second) {
    return Json{{first, "ab"}, {second, "c"}, {"label", 1}}.dump();
  };
  for (const auto& [first, second] : {std::pair{"sentence1", "sentence2"},
                                      {"question1", "question2"},
                                      {"premise", "hypothesis"},
                                      {"question", "sentence"}}) {
    const Dataset found = prepare_lines({pair(first, second)});
    EXPECT_EQ(text_of(found.rows[0]), "<s>ab<s>c");
    EXPECT_EQ(found.rows[0].second_text, 0);  // this tokenizer gives models no segments
    EXPECT_TRUE(found.unused_columns.empty());
  }
  options_.labelled->text_columns = {"a"};
  options_.labelled->pair_columns = {"b", "a"};
  EXPECT_EQ(text_of(prepare_lines({pair("a", "b")}).rows[0]), "<s>ab<s>c ab");
  EXPECT_THAT(error_of<FormatError>({pair("a", "d")}),
              HasSubstr("f.jsonl:1: found nothing in \"b\""));
  options_.labelled =
      LabelledOptions{.text_columns = {"premise"}, .label_column = "", .are_numbers = {}};
  EXPECT_EQ(text_of(prepare_lines({pair("premise", "hypothesis")}).rows[0]), "<s>ab");
}

TEST_F(LabelledRowTest, TheLongerOfAPairGivesWay) {
  options_.max_length = 6;
  const auto cut = [&](const char* first, const char* second) {
    return text_of(
        prepare_lines({Json{{"sentence1", first}, {"sentence2", second}, {"label", 1}}.dump()})
            .rows[0]);
  };
  EXPECT_EQ(cut("abcdef", "x"), "<s>abc<s>x");
  EXPECT_EQ(cut("a", "uvwxyz"), "<s>a<s>uvw");
  EXPECT_EQ(cut("abcdef", "uvwxyz"), "<s>ab<s>uv");
  EXPECT_EQ(cut("abcdef", ""), "<s>abcd<s>");
  options_.max_length = 2;
  EXPECT_THAT(
      testing::message_of<ConfigError>([&] { cut("a", "b"); }),
      HasSubstr("max_length: found 2, expected more than the 2 tokens that the tokenizer adds "
                "to a pair"));
}

TEST_F(LabelledRowTest, SegmentsAreThoseThatTheTokenizerGives) {
  const testing::TemporaryFolder folder;
  make_byte_tokenizer(folder);
  folder.put(
      "tokenizer_config.json",
      R"({"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["token_type_ids"]})");
  const auto typed = text::Tokenizer::load(folder.path());
  const auto made = [&](const std::string& line) {
    return prepare(rows_of({line}), *typed, &marked_, options_).rows.at(0);
  };
  const Example pair = made(R"({"sentence1": "ab", "sentence2": "c", "label": 1})");
  EXPECT_EQ(pair.second_text, 4);  // behind <s>ab<s>
  EXPECT_EQ(pair.ids.size(), 5u);
  EXPECT_EQ(made(R"({"sentence1": "ab", "sentence2": "", "label": 1})").second_text, 0);
  EXPECT_EQ(made(R"({"text": "ab", "label": 1})").second_text, 0);
}

class NamedNumbersTest : public LabelledRowTest {
 protected:
  Dataset made(const char* column, const std::vector<Json>& labels) const {
    std::vector<Row> rows;
    for (const Json& label : labels) {
      rows.push_back({.fields = {{"text", "a"}, {column, label}},
                      .file = std::make_shared<const std::string>("f.parquet"),
                      .line = static_cast<int64_t>(rows.size()) + 1,
                      .class_names = names_});
    }
    return prepare(rows, *tokenizer_, &marked_, options_);
  }

  std::shared_ptr<const ClassNames> names_ = std::make_shared<const ClassNames>(
      ClassNames{{"label", {"no", "yes", "perhaps"}}, {"labels", {"p", "q"}}});
};

TEST_F(NamedNumbersTest, AreThoseOfTheFileInItsOrder) {
  const Dataset found = made("label", {1, 0});
  EXPECT_THAT(names_of(found), ElementsAre("yes", "no"));
  EXPECT_THAT(found.class_names, ElementsAre("no", "yes", "perhaps"));
  EXPECT_EQ(stats_from_json(to_json(found)).class_names, found.class_names);
  EXPECT_THAT(names_of(made("labels", {Json::array({1, 0})})), ElementsAre("q", "p"));
}

TEST_F(NamedNumbersTest, WithoutANameAreErrors) {
  const auto error_of_label = [&](const Json& label) {
    return testing::message_of<FormatError>([&] { made("label", {label}); });
  };
  EXPECT_THAT(
      error_of_label(-1),
      HasSubstr("f.parquet:1: found -1 in \"label\", which says that the row has no label"));
  EXPECT_THAT(error_of_label("-1"), HasSubstr("which says that the row has no label"));
  EXPECT_THAT(
      error_of_label(3),
      HasSubstr("f.parquet:1: found 3 in \"label\", expected 0 to 2 or one of the names that "
                "the data set has for these (\"no\", \"yes\", \"perhaps\")"));
  EXPECT_THAT(error_of_label(0.5), HasSubstr("found 0.5 in \"label\", expected 0 to 2"));
  EXPECT_THAT(error_of_label("maybe"), HasSubstr("found \"maybe\" in \"label\", expected 0 to 2"));
  EXPECT_THAT(error_of_label(parse_json_exactly("36893488147419103232", "x")),
              HasSubstr("found 36893488147419103232 in \"label\", expected 0 to 2"));
}

// As datasets reads a table with such a column.
TEST_F(NamedNumbersTest, AreTextsTruthValuesAndWholeNumbers) {
  const Dataset found = made("label", {"perhaps", "0", true, 2.0, false, 1});
  EXPECT_THAT(names_of(found), ElementsAre("perhaps", "no", "yes"));
  EXPECT_EQ(found.label_kind, LabelKind::kClass);
  EXPECT_EQ(made("label", {2.0}).label_kind, LabelKind::kClass);
  EXPECT_THAT(names_of(made("labels", {Json::array({"q", "0"})})), ElementsAre("q", "p"));
}

TEST_F(NamedNumbersTest, AreNumbersWhereTheyAreToBeTold) {
  options_.labelled->are_numbers = true;
  const Dataset numbers = made("label", {2});
  EXPECT_TRUE(numbers.class_names.empty());
  EXPECT_THAT(numbers.rows[0].row_targets, ElementsAre(2));
}

TEST_F(LabelledRowTest, AFileGivesThemBack) {
  const Dataset made =
      prepare_lines({line("a", {"x", "y"}), line("bc", Json::array()), line("d", {"z"})});
  const TokenStore kept = TokenStore::scratch([&](TokenWriter& writer) {
    for (const Example& row : made.rows) writer.add(row);
    return static_cast<DatasetStats>(made);
  });
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_THAT(kept[0].row_targets, ElementsAre(0, 1));
  EXPECT_THAT(kept[1].row_targets, IsEmpty());
  EXPECT_THAT(kept[2].row_targets, ElementsAre(2));
  EXPECT_EQ(kept.stats().labels, made.labels);
  EXPECT_EQ(kept.stats().label_kind, LabelKind::kLabels);
  EXPECT_EQ(kept.content(), TokenStore(made).content());
}

TEST_F(LabelledRowTest, BatchesHoldTargetsAndTypes) {
  Dataset made = prepare_lines({line("abc", "x"), line("d", "y")});
  made.rows[0].second_text = 2;
  const TokenStore rows(made);
  const std::vector<int64_t> order{1, 0};
  const MicroBatch batch = collate_rows(rows, order);
  EXPECT_THAT(batch.row_targets, ElementsAre(ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(batch.token_types, ElementsAre(0, 0, 0, 0, 1, 1));
}

}  // namespace
}  // namespace strata::data
