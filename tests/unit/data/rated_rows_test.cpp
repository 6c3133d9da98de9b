// Oracle: TRL's description of rated answers (kto_trainer.py), written out for a tokenizer of
// bytes; tests/parity/test_rated_rows.py compares with TRL itself.
#include "strata/data/rated_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prepared_rows.h"
#include "strata/base/error.h"
#include "strata/data/collate.h"
#include "strata/data/store/token_store.h"

namespace strata::data {
namespace {

using ::testing::ElementsAre;

class RatedRowsTest : public PreparedRows {
 protected:
  RatedRowsTest() { options_.rated = RatedOptions{.mismatched_rows = 2}; }

  static std::string line(const std::string& prompt, const std::string& answer, bool is_desirable) {
    return Json{{"prompt", prompt}, {"completion", answer}, {"label", is_desirable}}.dump();
  }
};

TEST_F(RatedRowsTest, PutsEachAnswerBehindTheNextPrompt) {
  const Dataset found =
      prepare_lines({line("a", "b", true), line("cd", "ef", false), line("g", "h", true)});
  ASSERT_EQ(found.rows.size(), 3u);
  EXPECT_EQ(text_of(found.rows[0]), "<s>ab</s><s>aef</s>");
  EXPECT_EQ(labels_of(found.rows[0]), "__b</s>__ef</s>");
  EXPECT_EQ(text_of(found.rows[1]), "<s>cdef</s><s>cdb</s>");
  EXPECT_EQ(text_of(found.rows[2]), "<s>gh</s><s>gh</s>");  // nobody else is left
  EXPECT_THAT(found.rows[1].lengths, ElementsAre(6, 5));
  EXPECT_EQ(found.rows[0].rating, Rating::kDesirable);
  EXPECT_EQ(found.rows[1].rating, Rating::kUndesirable);
  EXPECT_EQ(found.num_targets, 7);
  EXPECT_EQ(found.num_tokens, 4 + 6 + 4);
  EXPECT_EQ(found.num_desirable, 2);
}

TEST_F(RatedRowsTest, CutsBothDocumentsAnew) {
  options_.max_length = 5;
  const Dataset found =
      prepare_lines({line("abc", "defg", true), line("abcd", "e", false), line("h", "i", false)});
  ASSERT_EQ(found.rows.size(), 2u);  // the second prompt fills all
  EXPECT_EQ(text_of(found.rows[0]), "<s>abcd<s>abci");
  EXPECT_EQ(text_of(found.rows[1]), "<s>hi</s><s>hdef");
  EXPECT_EQ(found.num_dropped, 1);
  EXPECT_EQ(found.num_long, 2);
}

TEST_F(RatedRowsTest, TakesPreferencesApart) {
  options_.rated->mismatched_rows = 0;
  const std::string pair = R"({"prompt": "a", "chosen": "b", "rejected": "c"})";
  const Dataset found = prepare_lines({pair, pair});
  ASSERT_EQ(found.rows.size(), 4u);
  EXPECT_EQ(text_of(found.rows[1]), "<s>ab</s>");
  EXPECT_EQ(text_of(found.rows[2]), "<s>ac</s>");
  EXPECT_EQ(found.rows[1].rating, Rating::kDesirable);
  EXPECT_EQ(found.rows[2].rating, Rating::kUndesirable);
}

TEST_F(RatedRowsTest, AreCollatedInTwoBatches) {
  const Dataset rows = prepare_lines({line("a", "b", true), line("cd", "ef", false)});
  const TokenStore kept = TokenStore::scratch([&](TokenWriter& writer) {
    for (const Example& row : rows.rows) writer.add(row);
    return static_cast<const DatasetStats&>(rows);
  });
  EXPECT_EQ(kept.content(), TokenStore(rows).content());
  const MicroBatch batch = collate_rows(kept, std::vector<int64_t>{1, 0});
  EXPECT_THAT(batch.ratings, ElementsAre(Rating::kUndesirable, Rating::kDesirable));
  EXPECT_THAT(batch.offsets, ElementsAre(0, 6, 10));
  EXPECT_THAT(batch.row_tokens, ElementsAre(6, 4));
  ASSERT_NE(batch.mismatched, nullptr);
  EXPECT_THAT(batch.mismatched->offsets, ElementsAre(0, 5, 10));
  EXPECT_THAT(batch.mismatched->rows, ElementsAre(1, 0));
  // Dropout draws by them.
  EXPECT_EQ(batch.mismatched->token_keys[0], batch.token_keys[5] + 1);
}

TEST_F(RatedRowsTest, RowsOfOtherKindsAreNotCollatedWithThem) {
  Dataset rows = prepare_lines({line("a", "b", true), line("cd", "ef", false)});
  rows.rows[1].rating = Rating::kNone;
  EXPECT_THROW(collate_rows(TokenStore(rows), std::vector<int64_t>{0, 1}), InternalError);
  rows.rows[1].rating = Rating::kDesirable;
  rows.rows[1].lengths = {static_cast<int32_t>(rows.rows[1].ids.size())};
  EXPECT_THROW(collate_rows(TokenStore(rows), std::vector<int64_t>{0, 1}), InternalError);
}

TEST_F(RatedRowsTest, UnknownRatingsOfAFileAreRefused) {
  Dataset rows = prepare_lines({line("a", "b", true)});
  rows.rows[0].rating = static_cast<Rating>(3);
  EXPECT_THROW(TokenStore::scratch([&](TokenWriter& writer) {
                 writer.add(rows.rows[0]);
                 return static_cast<const DatasetStats&>(rows);
               }),
               FormatError);
}

TEST_F(RatedRowsTest, OwnTokensAreThoseOfTheAnswer) {
  const Dataset rows = prepare_lines({line("a", "b", true), line("cd", "ef", false)});
  const TokenStore kept = TokenStore::scratch([&](TokenWriter& writer) {
    for (const Example& row : rows.rows) writer.add(row);
    return static_cast<const DatasetStats&>(rows);
  });
  for (const TokenStore& store : {kept, TokenStore(rows)}) {
    EXPECT_EQ(store.num_tokens(1), 11);
    EXPECT_EQ(store.num_own_tokens(1), 6);
  }
}

// Each document fits, both do not; a batch of them would be refused as a fault of this program.
TEST_F(RatedRowsTest, TwoDocumentsThatAreTooLongTogetherAreTold) {
  options_.max_length = 0;
  int64_t num_kept = 0;
  RatedRows rated(options_, [&](const ExampleView&) { ++num_kept; });
  const auto answer = [](int64_t size) {
    const std::vector<int32_t> ids(static_cast<size_t>(size), 7);
    return Example{.ids = ids,
                   .labels = ids,
                   .lengths = {1, static_cast<int32_t>(size - 1)},
                   .rating = Rating::kDesirable};
  };
  rated.add(answer(kMaxRowTokens / 2));
  rated.add(answer(kMaxRowTokens / 2));
  EXPECT_EQ(num_kept, 2);
  rated.add(answer(kMaxRowTokens / 2));
  EXPECT_THAT(
      strata::testing::message_of<FormatError>([&] { rated.add(answer(kMaxRowTokens / 2 + 1)); }),
      ::testing::HasSubstr(
          "train split: found 16777217 tokens in a rated answer and another one after its prompt, "
          "expected at most 16777216 in both; set max_length to at most 8388608"));
}

// A set's identity is its rows': rated otherwise they are others.
TEST_F(RatedRowsTest, RatingsAreAPartOfTheContent) {
  const auto content_of = [&](bool is_desirable) {
    return TokenStore(prepare_lines({line("a", "b", is_desirable), line("c", "d", true)}))
        .content();
  };
  EXPECT_NE(content_of(true), content_of(false));
}

}  // namespace
}  // namespace strata::data
