// Oracle: TRL's description of preferences (data_utils.py, dpo_trainer.py), written out for a
// tokenizer of bytes; tests/parity/test_preferences.py compares with TRL itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prepared_rows.h"
#include "strata/base/error.h"
#include "strata/data/inspect.h"
#include "strata/data/rows/preference_row.h"

namespace strata::data {
namespace {

using strata::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PreferenceTest : public PreparedRows {
 protected:
  PreferenceTest() { options_.preference.emplace(); }

  // prompt | chosen | rejected, as they are read.
  static std::string parts_of(const std::string& line) {
    const Row row = rows_of({line})[0];
    const Preference parts = read_preference(row, detect_preference(row, "text"));
    return fmt::format("{}|{}|{}", parts.prompt.get<std::string>(), parts.chosen.get<std::string>(),
                       parts.rejected.get<std::string>());
  }

  static std::string shared_parts(const std::string& chosen, const std::string& rejected) {
    return parts_of(Json{{"chosen", chosen}, {"rejected", rejected}}.dump());
  }
};

const std::string kText = R"({"prompt": "ab", "chosen": "c", "rejected": "de</s>"})";
const std::string kAnswers =
    R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "x", "content": "a"}],)"
    R"( "rejected": [{"role": "x", "content": "bc"}]})";

TEST_F(PreferenceTest, MakesTwoDocumentsOfARow) {
  const Dataset texts = prepare_lines({kText});
  ASSERT_EQ(texts.rows.size(), 1u);
  EXPECT_EQ(text_of(texts.rows[0]), "<s>abc</s><s>abde</s>");
  EXPECT_EQ(labels_of(texts.rows[0]), "___c</s>___de</s>");
  EXPECT_THAT(texts.rows[0].lengths, ElementsAre(5, 6));
  EXPECT_EQ(texts.num_targets, 5);
  const Dataset chats = prepare_lines({kAnswers});
  EXPECT_EQ(text_of(chats.rows.at(0)), "<s><|u|>q<|e|><|a|>a<|e|><s><|u|>q<|e|><|a|>bc<|e|>");
  EXPECT_EQ(labels_of(chats.rows[0]), "_____a<|e|>_____bc<|e|>");
}

TEST_F(PreferenceTest, LearnsThePromptBeforeTheBetterAnswer) {
  options_.preference->learns_prompt = true;
  const Dataset texts = prepare_lines({kText});
  EXPECT_EQ(labels_of(texts.rows.at(0)), "<s>abc</s>___de</s>");
  EXPECT_EQ(texts.num_targets, 7);
  const std::string message =
      R"({"prompt": [{"role": "user", "content": "q", "train": false}], )"
      R"("chosen": [{"role": "x", "content": "a"}], )"
      R"("rejected": [{"role": "x", "content": "b", "train": %}, {"role": "x", "content": "c"}]})";
  const auto with = [&message](const std::string& word) {
    return std::string(message).replace(message.find('%'), 1, word);
  };
  // The user's message stays without labels, the mark behind it has one.
  EXPECT_EQ(labels_of(prepare_lines({with("true")}).rows.at(0)),
            "____<|a|>a<|e|>_____b<|e|><|a|>c<|e|>");
  EXPECT_THAT(message_of<FormatError>([&] { prepare_lines({with("false")}); }),
              HasSubstr("found a \"rejected\" that begins with a message that is not learnt"));
}

TEST_F(PreferenceTest, APromptIsNoAnswer) {
  // Of the better answer what is left when it is cut must not be learnt.
  const std::string row =
      R"({"prompt": [{"role": "user", "content": "q"}], )"
      R"("chosen": [{"role": "x", "content": "abcdef", "train": false}, {"role": "x", "content": "g"}], )"
      R"("rejected": [{"role": "x", "content": "b"}]})";
  options_.max_length = 10;
  for (const bool learns_prompt : {false, true}) {
    options_.preference->learns_prompt = learns_prompt;
    const Dataset cut = prepare_lines({row, kAnswers});
    EXPECT_EQ(cut.rows.size(), 1u) << learns_prompt;
    EXPECT_EQ(cut.num_dropped, 1) << learns_prompt;
  }
}

TEST_F(PreferenceTest, CutsEachDocument) {
  const std::string long_prompt = R"({"prompt": "abcdef", "chosen": "gh", "rejected": "ij"})";
  options_.max_length = 5;
  const Dataset starts = prepare_lines({kText, long_prompt});
  ASSERT_EQ(starts.rows.size(), 1u);
  EXPECT_EQ(labels_of(starts.rows[0]), "___c</s>___de");
  EXPECT_THAT(starts.rows[0].lengths, ElementsAre(5, 5));
  EXPECT_EQ(starts.num_dropped, 1);
  EXPECT_EQ(starts.num_long, 2);
  options_.preference->truncation_mode = "keep_end";
  const Dataset ends = prepare_lines({kText, long_prompt});
  ASSERT_EQ(ends.rows.size(), 2u);
  EXPECT_EQ(text_of(ends.rows[0]), "<s>abc</s>abde</s>");
  EXPECT_EQ(labels_of(ends.rows[1]), "__gh</s>__ij</s>");
  EXPECT_EQ(ends.num_dropped, 0);
}

TEST_F(PreferenceTest, FindsTheSharedBeginning) {
  EXPECT_EQ(shared_parts("q a", "q b"), "q| a| b");
  EXPECT_EQ(shared_parts("q  a", "q  b"), "q | a| b");
  EXPECT_EQ(shared_parts("qa", "qb"), "q|a|b");
  EXPECT_EQ(shared_parts("ab", "abc"), "a|b|bc");
  EXPECT_EQ(shared_parts("a ", "a b"), "a| | b");
  EXPECT_EQ(shared_parts("ab", "ab"), "a|b|b");
  EXPECT_EQ(shared_parts("a", "b"), "|a|b");
  EXPECT_EQ(shared_parts("a ", "b "), "|a |b ");
  EXPECT_EQ(shared_parts("\u00e9", "\u00e8"), "|\u00e9|\u00e8");
  EXPECT_EQ(shared_parts("x\u6771", "x\u6771\u4eac"), "x|\u6771|\u6771\u4eac");
}

TEST_F(PreferenceTest, SkipsBadRowsAndCountsThem) {
  options_.skip_bad_rows = true;
  const Dataset rows = prepare_lines({R"({"text": "x"})", kText, R"({"prompt": "a"})", kAnswers});
  EXPECT_EQ(rows.rows.size(), 1u);
  EXPECT_EQ(rows.bad_rows.count, 3);
  EXPECT_THAT(rows.bad_rows.first, HasSubstr("f.jsonl:1: found an example to imitate"));
}

TEST_F(PreferenceTest, SkipsBadRowsBehindConversations) {
  options_.skip_bad_rows = true;
  const Dataset rows = prepare_lines({kAnswers, R"({"text": "x"})", R"({"chosen": [], "x": 1})",
                                      R"({"rejected": [7], "prompt": "q"})", kText, "{}"});
  EXPECT_EQ(rows.rows.size(), 1u);
  EXPECT_EQ(rows.bad_rows.count, 5);
}

TEST_F(PreferenceTest, NeedsAnEndAndATemplate) {
  const auto prepare_with = [&](const std::string& line, bool with_eos) {
    const auto tokenizer = make_byte_tokenizer(with_eos);
    return message_of<ConfigError>(
        [&] { prepare(rows_of({line}), *tokenizer, /*tmpl=*/nullptr, options_); });
  };
  EXPECT_THAT(prepare_with(kText, false), HasSubstr("without an end-of-sequence token"));
  EXPECT_THAT(prepare_with(kAnswers, true), HasSubstr("a tokenizer with a chat template"));
}

TEST_F(PreferenceTest, NamesTextsThatTheTemplateHidesOnce) {
  const std::string hidden =
      R"({"prompt": [{"role": "critic", "content": "123"}, {"role": "user", "content": "q"}],)"
      R"( "chosen": [{"role": "assistant", "content": "a"}, {"role": "critic", "content": "4"}],)"
      R"( "rejected": [{"role": "assistant", "content": "b"}]})";
  const text::ChatTemplate two_roles(
      "{% for m in messages %}{% if m.role != 'critic' %}<|u|>{{ m.content }}<|e|>{% endif %}"
      "{% endfor %}");
  const Dataset rows = prepare(rows_of({hidden}), *tokenizer_, &two_roles, options_);
  EXPECT_EQ(rows.hidden_texts.at("texts of role \"critic\"").count, 2);
}

TEST_F(PreferenceTest, IsTheSameByAnyNumberOfThreads) {
  std::vector<std::string> lines;
  for (int i = 0; i < 300; ++i) {
    const std::string prompt(static_cast<size_t>(i % 17), 'p');
    lines.push_back(
        Json{{"prompt", prompt}, {"chosen", std::to_string(i)}, {"rejected", "n"}}.dump());
  }
  const Dataset one = prepare_lines(lines);
  options_.threads = 3;
  const Dataset three = prepare_lines(lines);
  ASSERT_EQ(one.rows.size(), 300u);
  for (size_t i = 0; i < one.rows.size(); ++i) {
    EXPECT_EQ(one.rows[i].ids, three.rows[i].ids);
    EXPECT_EQ(one.rows[i].labels, three.rows[i].labels);
  }
}

TEST_F(PreferenceTest, IsInspected) {
  const std::string same = R"({"prompt": "ab", "chosen": "c", "rejected": "c"})";
  const TokenStore store(prepare_lines({kText, same, kText}));
  const Inspection seen = inspect(store, *tokenizer_, RowsOf::kPreferences);
  EXPECT_EQ(seen.rows, 3);
  EXPECT_EQ(seen.documents, 6);
  EXPECT_EQ(seen.trained_tokens, 14);
  EXPECT_EQ(seen.duplicates, 0);
  EXPECT_EQ(seen.duplicate_rows, 1);
  EXPECT_EQ(seen.masked + seen.no_end + seen.two_bos, 0);
  EXPECT_THAT(find_mistakes(seen, {}, ""),
              ElementsAre("1 of 3 rows are the same as an earlier one"));
  // 5 and 6, 5 and 5 tokens: four documents of 6.
  EXPECT_DOUBLE_EQ(padding_part(store, {{0, 1}}, RowsOf::kPreferences), 1 - 21.0 / 24);
}

}  // namespace
}  // namespace strata::data
