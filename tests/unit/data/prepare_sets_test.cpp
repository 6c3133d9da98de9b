// Oracle: rows that TRL's SFTTrainer packs and `datasets` shuffles from the same input, and the
// same rows prepared in memory, alone, by one thread.
#include "strata/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prepared_rows.h"
#include "strata/base/error.h"

namespace strata::data {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PrepareSetsTest : public PreparedRows {};

TEST_F(PrepareSetsTest, PacksAndMayMergeDocuments) {
  options_.packing = true;
  options_.max_length = 8;
  const std::vector<std::string> lines = {R"({"text": "a"})", R"({"text": "bcd"})"};
  EXPECT_THAT(prepare_lines(lines).rows.at(0).lengths, ElementsAre(5, 3));
  EXPECT_EQ(prepare_lines(lines).num_targets, 6);
  options_.separate_documents = false;
  EXPECT_THAT(prepare_lines(lines).rows.at(0).lengths, ElementsAre(8));
  EXPECT_EQ(prepare_lines(lines).num_targets, 7);
  options_.packing_strategy = "wrapped";
  options_.max_length = 4;
  const Dataset wrapped = prepare_lines(lines);
  EXPECT_EQ(text_of(wrapped.rows[0]), "<s>a</s><s>");
  EXPECT_EQ(text_of(wrapped.rows[1]), "bcd</s>");
}

TEST_F(PrepareSetsTest, ShufflesAsDatasetsDoes) {
  std::vector<std::string> lines;
  for (char c = '0'; c <= '9'; ++c) lines.push_back(std::string(R"({"text": ")") + c + R"("})");
  const auto order = [&] {
    std::string text;
    for (const Example& row : prepare_lines(lines).rows) text += static_cast<char>(row.ids[1]);
    return text;
  };
  options_.shuffle = true;
  EXPECT_EQ(order(), "5607324918");
  options_.packing = true;  // one document a row: only the two shuffles are seen
  options_.max_length = 3;
  EXPECT_EQ(order(), "2459703861");
}

TEST_F(PrepareSetsTest, DoesNotDependOnTheNumberOfThreads) {
  std::vector<std::string> lines;
  for (int i = 0; i < 500; ++i)
    lines.push_back(R"({"text": ")" + std::string(i % 37, 'x') + R"("})");
  const Dataset one = prepare_lines(lines);
  options_.threads = 4;
  const Dataset four = prepare_lines(lines);
  ASSERT_EQ(one.rows.size(), four.rows.size());
  for (size_t i = 0; i < one.rows.size(); ++i) EXPECT_EQ(one.rows[i].ids, four.rows[i].ids);
  for (const int bad : {450, 130, 99}) {
    lines[bad] = R"({"text": 3})";
    EXPECT_THAT(error_of<FormatError>(lines),
                HasSubstr("f.jsonl:" + std::to_string(bad + 1) + ": found a number in \"text\""));
  }
}

// A batch is taken while the next is in work: what is wrong with both is told of the first.
TEST_F(PrepareSetsTest, TellsTheFirstBadRowOfSeveralBatches) {
  const TemporaryFolder folder;
  for (const int threads : {1, 4}) {
    options_.threads = threads;
    std::string text;
    for (int i = 1; i <= 4000; ++i) {
      const bool is_bad = i == 1700 || i == 2100 || i == 3999;
      text += is_bad ? "{\"text\": 3}\n" : "{\"text\": \"a\"}\n";
    }
    const DataRequest request{.names = folder.put("a.jsonl", text).string()};
    EXPECT_THAT(message_of<FormatError>([&] {
                  prepare_data(request, *tokenizer_, nullptr, options_, [](const ExampleView&) {});
                }),
                HasSubstr("a.jsonl:1700: found a number"));
    // A line that cannot be read is told after bad rows before it.
    text += "nonsense\n";
    const DataRequest broken{.names = folder.put("b.jsonl", text).string()};
    EXPECT_THAT(message_of<FormatError>([&] {
                  prepare_data(broken, *tokenizer_, nullptr, options_, [](const ExampleView&) {});
                }),
                HasSubstr("b.jsonl:1700: found a number"));
    DataRequest skipping = broken;
    options_.skip_bad_rows = skipping.load.skip_bad_rows = true;
    const DatasetStats stats =
        prepare_data(skipping, *tokenizer_, nullptr, options_, [](const ExampleView&) {});
    EXPECT_EQ(stats.bad_rows.count, 4);
    EXPECT_THAT(stats.bad_rows.first, HasSubstr("b.jsonl:1700"));
    options_.skip_bad_rows = false;
  }
}

// Oracle: the rows in memory in the mixture's order, prepared alone.
TEST_F(PrepareSetsTest, MixesRowsThatWaitOnDisk) {
  const TemporaryFolder folder;
  std::string first, second;
  for (int i = 0; i < 2500; ++i) {
    first += R"({"text": "a)" + std::to_string(i) + std::string(i % 11, 'x') + "\"}\n";
    if (i % 400 == 3)
      first += R"({"text": 3})"
               "\n";
    second += R"({"text": "b)" + std::to_string(i) + "\"}\n";
  }
  DataRequest request;
  request.names =
      folder.put("a.jsonl", first).string() + "," + folder.put("b.jsonl", second).string();
  request.split = "train[:90%]";
  request.weights = {0.3, 0.7};
  options_.skip_bad_rows = true;
  const Split split = load_data(request);
  ASSERT_GT(split.rows.size(), 2500u);
  for (const char* policy : {"truncate", "drop", "split"}) {
    for (const bool packing : {false, true}) {
      for (const bool shuffle : {false, true}) {
        options_.long_rows = policy;
        options_.max_length = packing ? 40 : 12;
        options_.packing = packing;
        options_.shuffle = shuffle;
        options_.threads = shuffle ? 3 : 1;
        const Dataset expected = prepare(split.rows, *tokenizer_, nullptr, options_);
        std::vector<Example> found;
        const DatasetStats stats =
            prepare_data(request, *tokenizer_, nullptr, options_, [&](const ExampleView& row) {
              found.push_back({{row.ids.begin(), row.ids.end()},
                               {row.labels.begin(), row.labels.end()},
                               {row.lengths.begin(), row.lengths.end()}});
            });
        ASSERT_EQ(found.size(), expected.rows.size());
        for (size_t i = 0; i < found.size(); ++i) {
          ASSERT_EQ(found[i].ids, expected.rows[i].ids) << i;
          ASSERT_EQ(found[i].lengths, expected.rows[i].lengths) << i;
        }
        EXPECT_EQ(stats.num_sources, expected.num_sources);
        EXPECT_EQ(stats.num_long, expected.num_long);
        EXPECT_EQ(stats.bad_rows.count, expected.bad_rows.count);
        EXPECT_EQ(stats.num_targets, expected.num_targets);
      }
    }
  }
}

// The first error in the rows' order, whether it was met in reading or in tokenizing.
TEST_F(PrepareSetsTest, TheFirstBadRowWins) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 1; i <= 4000; ++i) {
    text += i == 3100 ? R"({"text": 3})" : i == 3200 ? "nonsense" : R"({"text": "x"})";
    text += "\n";
  }
  const DataRequest request{.names = folder.put("a.jsonl", text).string()};
  const auto error = [&] {
    return message_of<FormatError>(
        [&] { prepare_data(request, *tokenizer_, nullptr, options_, [](const ExampleView&) {}); });
  };
  for (const int threads : {1, 3}) {
    options_.threads = threads;
    EXPECT_THAT(error(), HasSubstr("a.jsonl:3100: found a number"));
  }
  options_.skip_bad_rows = true;
  DataRequest skipping = request;
  skipping.load.skip_bad_rows = true;
  const DatasetStats stats =
      prepare_data(skipping, *tokenizer_, nullptr, options_, [](const ExampleView&) {});
  EXPECT_EQ(stats.bad_rows.count, 2);
  EXPECT_EQ(stats.num_sources, 4000);
}

TEST_F(PrepareSetsTest, StopsWithEnoughRows) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 9000; ++i)
    text += R"({"text": "x"})"
            "\n";
  text += "nonsense that nobody reads\n";
  const DataRequest request{.names = folder.put("a.jsonl", text).string()};
  for (const bool packing : {false, true}) {
    options_.packing = packing;
    options_.max_length = 9;
    options_.max_rows = 100;
    int64_t rows = 0;
    const DatasetStats stats = prepare_data(request, *tokenizer_, nullptr, options_,
                                            [&rows](const ExampleView&) { ++rows; });
    EXPECT_EQ(rows, 100);
    EXPECT_LT(stats.num_sources, 9000);
  }
}

}  // namespace
}  // namespace strata::data
