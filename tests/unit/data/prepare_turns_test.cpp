// Oracle: which messages say that they are learnt, and what a template shows of them (golden
// strings), and the text of each error.
#include "strata/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prepared_rows.h"
#include "strata/base/error.h"

namespace strata::data {
namespace {

using strata::testing::message_of;
using ::testing::HasSubstr;

class PrepareTurnsTest : public PreparedRows {};

// The conversation of kChat, with what its first question and answer say of themselves.
std::string chat_with(const std::string& question, const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": "hi")" + question +
         R"(}, {"role": "assistant", "content": "yo")" + answer +
         R"(}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "z"}]})";
}

TEST_F(PrepareTurnsTest, LeavesOutMessagesThatAskForIt) {
  struct Case {
    std::string line;
    bool assistant_only;
    const char* labels;
  };
  for (const Case& c : {
           Case{chat_with("", R"(, "weight": 0)"), true, "_____________z<|e|>"},
           Case{chat_with("", R"(, "train": false)"), true, "_____________z<|e|>"},
           Case{chat_with("", R"(, "weight": 1.0, "train": null)"), true,
                "______yo<|e|>____z<|e|>"},
           Case{chat_with(R"(, "train": true)", ""), true, "<s><|u|>hi<|e|>_yo<|e|>____z<|e|>"},
           Case{chat_with("", R"(, "weight": 0)"), false,
                "<s><|u|>hi<|e|><|a|>___<|u|>q<|e|><|a|>z<|e|>"},
           Case{chat_with(R"(, "train": false)", ""), false,
                "_____<|a|>yo<|e|><|u|>q<|e|><|a|>z<|e|>"},
       }) {
    options_.assistant_only_loss = c.assistant_only;
    for (const text::ChatTemplate* tmpl : {&marked_, &plain_}) {
      const Dataset dataset = prepare(rows_of({c.line}), *tokenizer_, tmpl, options_);
      EXPECT_EQ(labels_of(dataset.rows[0]), c.labels) << c.line;
    }
  }
}

TEST_F(PrepareTurnsTest, LeavesOutAnswersOfPromptsToo) {
  const std::string line =
      R"({"prompt": [{"role": "user", "content": "hi"}], "completion": [)"
      R"({"role": "assistant", "content": "yo", "weight": 0}, {"role": "user", "content": "q"},)"
      R"( {"role": "assistant", "content": "z"}]})";
  EXPECT_EQ(labels_of_line(line), "_________<|u|>q<|e|><|a|>z<|e|>");
}

TEST_F(PrepareTurnsTest, NamesRowsWhoseWishesCannotBeFollowed) {
  for (const bool assistant_only : {false, true}) {
    options_.assistant_only_loss = assistant_only;
    const auto error = [&](const char* answer) {
      return error_of<FormatError>({kChat, chat_with("", answer)});
    };
    EXPECT_THAT(error(R"(, "weight": 0.5)"),
                HasSubstr("f.jsonl:2: message 2: found 0.5 as \"weight\", expected 0"));
    EXPECT_THAT(error(R"(, "weight": "0")"), HasSubstr("found \"0\" as \"weight\""));
    EXPECT_THAT(error(R"(, "weight": 18446744073709551616)"),
                HasSubstr("found 18446744073709551616 as \"weight\""));
    EXPECT_THAT(error(R"(, "train": -18446744073709551616)"),
                HasSubstr("found -18446744073709551616 as \"train\""));
    EXPECT_THAT(error(R"(, "train": 1)"), HasSubstr("found 1 as \"train\", expected true"));
    EXPECT_THAT(error(R"(, "weight": 1, "train": false)"), HasSubstr("contradict each other"));
  }
  EXPECT_THAT(
      error_of<FormatError>({kChat, R"({"messages": [{"role": "user", "content": "x"},)"
                                    R"( {"role": "assistant", "content": "y", "weight": 0}]})"}),
      HasSubstr("f.jsonl:2: found no token that the assistant wrote and that is learnt"));
}

// A template may write more blocks than there are answers: those inside the answer count.
TEST_F(PrepareTurnsTest, LeavesOutAllBlocksOfAnAnswer) {
  const text::ChatTemplate two_blocks(
      std::string("<s>") + kTurns +
          "{% generation %}{{ m.content[:1] }}{% endgeneration %}{% generation %}{{ m.content[1:] "
          "}}<|e|>{% endgeneration %}{% endif %}{% endfor %}" +
          kPrompt,
      "t");
  options_.assistant_only_loss = true;
  const auto labels = [&](const std::string& answer) {
    return labels_of(
        prepare(rows_of({chat_with("", answer)}), *tokenizer_, &two_blocks, options_).rows[0]);
  };
  EXPECT_EQ(labels(""), "______yo<|e|>____z<|e|>");
  EXPECT_EQ(labels(R"(, "weight": 0)"), "_____________z<|e|>");
}

// As many blocks as answers, but none for the second, which the template hides: counting alone
// would take the first one's for it.
TEST_F(PrepareTurnsTest, TakesNoBlockForAnotherAnswer) {
  const text::ChatTemplate hides(
      std::string("<s>") + kTurns +
          "{% if m.content != 'z' %}{% generation %}{{ m.content[:1] }}{% endgeneration %}"
          "{% generation %}{{ m.content[1:] }}<|e|>{% endgeneration %}{% endif %}{% endif %}"
          "{% endfor %}" +
          kPrompt,
      "t");
  const std::string line =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},)"
      R"( {"role": "user", "content": "q"}, {"role": "assistant", "content": "z", "weight": 0}]})";
  options_.assistant_only_loss = true;
  EXPECT_EQ(labels_of(prepare(rows_of({line}), *tokenizer_, &hides, options_).rows[0]),
            "______yo<|e|>____");
  options_.assistant_only_loss = false;
  EXPECT_EQ(labels_of(prepare(rows_of({line}), *tokenizer_, &hides, options_).rows[0]),
            "<s><|u|>hi<|e|><|a|>yo<|e|><|u|>q<|e|><|a|>");
}

// One block around everything: an answer that says no is cut out of it.
TEST_F(PrepareTurnsTest, CutsAnAnswerOutOfALargerBlock) {
  const text::ChatTemplate one_block(
      std::string("<s>{% generation %}") + kTurns +
          "{{ m.content }}<|e|>{% endif %}{% endfor %}{% endgeneration %}" + kPrompt,
      "t");
  options_.assistant_only_loss = true;
  EXPECT_EQ(labels_of(prepare(rows_of({chat_with("", R"(, "weight": 0)")}), *tokenizer_, &one_block,
                              options_)
                          .rows[0]),
            "_<|u|>hi<|e|><|a|>___<|u|>q<|e|><|a|>z<|e|>");
}

// There is nothing to leave out of a message that the template does not show.
TEST_F(PrepareTurnsTest, FollowsWishesOfHiddenMessages) {
  const std::string shown =
      "{% if m.role == 'user' %}<|u|>{{ m.content }}<|e|>{% elif m.role == 'assistant' %}<|a|>"
      "{{ m.content }}<|e|>{% endif %}{% endfor %}";
  const std::string line =
      R"({"messages": [{"role": "system", "content": "s", "weight": 0},)"
      R"( {"role": "user", "content": "hi"}, {"role": "tool", "content": "t", "train": false},)"
      R"( {"role": "assistant", "content": "yo"}]})";
  // The second one refuses conversations that nothing is shown of.
  for (const char* first : {"<s>",
                            "<s>{% if messages|selectattr('role', 'eq', 'user')|list|length "
                            "== 0 %}{{ raise_exception('no user') }}{% endif %}"}) {
    const text::ChatTemplate hides(first + ("{% for m in messages %}" + shown) + kPrompt, "t");
    for (const bool assistant_only : {false, true}) {
      options_.assistant_only_loss = assistant_only;
      EXPECT_EQ(labels_of(prepare(rows_of({line}), *tokenizer_, &hides, options_).rows[0]),
                assistant_only ? "______yo<|e|>" : "<s><|u|>hi<|e|><|a|>yo<|e|>");
    }
  }
}

// Its first answer is trained as any other, without the mark of its role.
TEST_F(PrepareTurnsTest, FindsTheAnswerThatBeginsAConversation) {
  const auto line = [](const std::string& before, const std::string& wish) {
    return R"({"messages": [)" + before + R"({"role": "assistant", "content": "a")" + wish +
           R"(}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]})";
  };
  const std::string no = R"(, "weight": 0)";
  const std::string other = R"({"role": "other", "content": "o"}, )";
  const text::ChatTemplate default_system(
      std::string("<s>{% if messages[0].role != 'user' %}-{% endif %}") + kTurns +
          "{{ m.content }}<|e|>{% endif %}{% endfor %}" + kPrompt,
      "t");
  const auto labels = [&](const text::ChatTemplate& tmpl, const std::string& row) {
    return labels_of(prepare(rows_of({row}), *tokenizer_, &tmpl, options_).rows[0]);
  };
  options_.assistant_only_loss = true;
  for (const text::ChatTemplate* tmpl : {&marked_, &plain_}) {
    EXPECT_EQ(labels(*tmpl, line("", "")), "__a<|e|>____c<|e|>");
    EXPECT_EQ(labels(*tmpl, line("", no)), "________c<|e|>");
  }
  EXPECT_EQ(labels(plain_, line(other, no)), "___________c<|e|>");
  EXPECT_EQ(labels(plain_, line(other, "")), "_____a<|e|>____c<|e|>");
  EXPECT_EQ(labels(default_system, line("", "")), "___a<|e|>____c<|e|>");
  options_.assistant_only_loss = false;
  for (const text::ChatTemplate* tmpl : {&marked_, &plain_}) {
    EXPECT_EQ(labels(*tmpl, line("", no)), "<s><|a|>__<|u|>b<|e|><|a|>c<|e|>");
  }
}

// A template that shows earlier answers otherwise: what begins as the whole answer's end does is
// not yet the answer, whatever form its content has.
TEST_F(PrepareTurnsTest, FindsChangedAnswersOfEveryContent) {
  const text::ChatTemplate changes(
      "<s>{% for m in messages %}"
      "{% set text = m.content if m.content is string else "
      "m.content | map(attribute='text') | join %}"
      "{% if m.role == 'user' %}<|u|>{{ text }}<|e|>{% else %}<|a|>"
      "{{ ('' if loop.last else '.\n') + text + '<|e|>.\n' }}{% endif %}{% endfor %}" +
          std::string(kPrompt),
      "t");
  options_.assistant_only_loss = true;
  const auto labels = [&](const std::string& content) {
    const std::string line =
        R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": )" +
        content + R"(}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "z"}]})";
    return labels_of(prepare(rows_of({line}), *tokenizer_, &changes, options_).rows[0]);
  };
  const std::string rest = "____z<|e|>.\n";
  EXPECT_EQ(labels(R"("yo")"), "______.\nyo<|e|>.\n" + rest);
  EXPECT_EQ(labels(R"([{"type": "text", "text": "yo"}])"), "______.\nyo<|e|>.\n" + rest);
  EXPECT_EQ(labels(R"("")"), "______.\n<|e|>.\n" + rest);
}

TEST_F(PrepareTurnsTest, NamesTheRowThatTheAssistantBegins) {
  options_.assistant_only_loss = true;
  const text::ChatTemplate strict(
      "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
      "{% for m in messages %}{{ m.content }}{% endfor %}",
      "t");
  const char* row = R"({"messages": [{"role": "assistant", "content": "a"},)"
                    R"( {"role": "user", "content": "b"}]})";
  EXPECT_THAT(message_of<FormatError>([&] {
                prepare(rows_of({kChat, row}), *tokenizer_, &strict, options_);
              }),
              HasSubstr("f.jsonl:2: "));
}

TEST_F(PrepareTurnsTest, RefusesRowsWithoutAssistant) {
  options_.assistant_only_loss = true;
  EXPECT_THAT(error_of<FormatError>({kChat, R"({"messages": [{"role": "user", "content": "x"}]})"}),
              HasSubstr("f.jsonl:2: found no token that the assistant wrote"));
}

}  // namespace
}  // namespace strata::data
