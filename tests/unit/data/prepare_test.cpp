// Oracle: rows that TRL's SFTTrainer prepares from the same input with the same tokenizer (golden
// strings), and the text of each error.
#include "strata/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "strata/base/error.h"

namespace strata::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTurns =
    "{% for m in messages %}{% if m.role == 'user' %}<|u|>{{ m.content }}<|e|>{% else %}<|a|>";
constexpr const char* kPrompt = "{% if add_generation_prompt %}<|a|>{% endif %}";

class PrepareTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { tokenizer_ = make_byte_tokenizer().release(); }
  static void TearDownTestSuite() { delete tokenizer_; }

  PrepareTest()
      : marked_(std::string("<s>") + kTurns +
                "{% generation %}{{ m.content }}<|e|>{% endgeneration %}{% endif %}{% endfor %}" +
                kPrompt),
        plain_(std::string("<s>") + kTurns + "{{ m.content }}<|e|>{% endif %}{% endfor %}" +
               kPrompt) {
    options_.subject = "train split";
  }

  static std::vector<Row> rows_of(const std::vector<std::string>& lines) {
    const auto file = std::make_shared<const std::string>("f.jsonl");
    std::vector<Row> rows;
    for (const std::string& line : lines) {
      rows.push_back({.fields = Json::parse(line),
                      .file = file,
                      .line = static_cast<int64_t>(rows.size()) + 1});
    }
    return rows;
  }

  Dataset prepare_lines(const std::vector<std::string>& lines) const {
    return prepare(rows_of(lines), *tokenizer_, &marked_, options_);
  }

  // The text of a row; special tokens in full.
  static std::string text_of(const Example& row) {
    return tokenizer_->decode(row.ids, /*skip_special_tokens=*/false);
  }

  // The trained text, _ for every token that is not trained.
  static std::string labels_of(const Example& row) {
    std::string text;
    for (const int32_t label : row.labels) {
      text += label == -100 ? "_"
                            : tokenizer_->decode(std::span(&label, 1),
                                                 /*skip_special_tokens=*/false);
    }
    return text;
  }

  std::string labels_of_line(const std::string& line) const {
    return labels_of(prepare_lines({line}).rows.at(0));
  }

  template <typename Error>
  std::string error_of(const std::vector<std::string>& lines) const {
    return message_of<Error>([&] { prepare_lines(lines); });
  }

  static text::Tokenizer* tokenizer_;
  text::ChatTemplate marked_;  // has {% generation %}
  text::ChatTemplate plain_;   // renders the same text
  PrepareOptions options_;
};

text::Tokenizer* PrepareTest::tokenizer_ = nullptr;

const std::string kChat =
    R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},)"
    R"( {"role": "user", "content": "q"}, {"role": "assistant", "content": "z"}]})";

TEST_F(PrepareTest, EndsTextsOnce) {
  EXPECT_EQ(labels_of_line(R"({"text": "ab"})"), "<s>ab</s>");
  EXPECT_EQ(labels_of_line(R"({"text": "cd</s>"})"), "<s>cd</s>");
  options_.dataset_text_field = "body";
  EXPECT_EQ(labels_of_line(R"({"body": "ab"})"), "<s>ab</s>");
}

TEST_F(PrepareTest, Truncates) {
  options_.max_length = 4;
  EXPECT_EQ(labels_of_line(R"({"text": "abcdefgh"})"), "<s>abc");
}

TEST_F(PrepareTest, TrainsCompletionsOnly) {
  EXPECT_EQ(labels_of_line(R"({"prompt": "ab", "completion": "cd"})"), "___cd</s>");
  options_.completion_only_loss = false;
  EXPECT_EQ(labels_of_line(R"({"prompt": "ab", "completion": "cd"})"), "<s>abcd</s>");
}

// A text column that is not trained takes the end token; the completion then has none.
TEST_F(PrepareTest, GivesTheEndTokenToTheTextColumnFirst) {
  EXPECT_EQ(labels_of_line(R"({"prompt": "ab", "completion": "cd", "text": "x"})"), "___cd");
  EXPECT_EQ(labels_of_line(R"({"prompt": "ab", "completion": "cd", "text": "x</s>"})"),
            "___cd</s>");
}

TEST_F(PrepareTest, TrainsCompletionMessagesOnly) {
  const std::string line = R"({"prompt": [{"role": "user", "content": "hi"}],)"
                           R"( "completion": [{"role": "assistant", "content": "yo"}]})";
  EXPECT_EQ(labels_of_line(line), "______yo<|e|>");
  EXPECT_EQ(text_of(prepare_lines({line}).rows[0]), "<s><|u|>hi<|e|><|a|>yo<|e|>");
}

TEST_F(PrepareTest, TrainsConversationsWhole) {
  EXPECT_EQ(labels_of_line(kChat), "<s><|u|>hi<|e|><|a|>yo<|e|><|u|>q<|e|><|a|>z<|e|>");
  EXPECT_EQ(labels_of_line(R"({"conversations": [{"from": "user", "value": "hi"}]})"),
            "<s><|u|>hi<|e|>");
}

TEST_F(PrepareTest, TrainsTheAssistantOnly) {
  options_.assistant_only_loss = true;
  for (const text::ChatTemplate* tmpl : {&marked_, &plain_}) {
    const Dataset dataset = prepare(rows_of({kChat}), *tokenizer_, tmpl, options_);
    EXPECT_EQ(labels_of(dataset.rows[0]), "______yo<|e|>____z<|e|>");
    EXPECT_EQ(dataset.num_targets, 5);
  }
}

TEST_F(PrepareTest, CombinesBothMasks) {
  options_.assistant_only_loss = true;
  EXPECT_EQ(labels_of_line(R"({"prompt": [{"role": "assistant", "content": "a"}],)"
                           R"( "completion": [{"role": "user", "content": "b"},)"
                           R"( {"role": "assistant", "content": "c"}]})"),
            "________c<|e|>");
}

TEST_F(PrepareTest, RefusesTemplatesThatHideEarlierTurns) {
  options_.assistant_only_loss = true;
  const text::ChatTemplate hiding(
      "{% for m in messages %}{{ m.content if loop.last else '...' }}{% endfor %}", "t");
  const std::string error =
      message_of<FormatError>([&] { prepare(rows_of({kChat}), *tokenizer_, &hiding, options_); });
  EXPECT_THAT(error, AllOf(HasSubstr("f.jsonl:1: "), HasSubstr("{% generation %}"),
                           HasSubstr("message 2")));
}

// The conversation of kChat, with what its first question and answer say of themselves.
std::string chat_with(const std::string& question, const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": "hi")" + question +
         R"(}, {"role": "assistant", "content": "yo")" + answer +
         R"(}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "z"}]})";
}

TEST_F(PrepareTest, LeavesOutMessagesThatAskForIt) {
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

TEST_F(PrepareTest, LeavesOutAnswersOfPromptsToo) {
  const std::string line =
      R"({"prompt": [{"role": "user", "content": "hi"}], "completion": [)"
      R"({"role": "assistant", "content": "yo", "weight": 0}, {"role": "user", "content": "q"},)"
      R"( {"role": "assistant", "content": "z"}]})";
  EXPECT_EQ(labels_of_line(line), "_________<|u|>q<|e|><|a|>z<|e|>");
}

TEST_F(PrepareTest, NamesRowsWhoseWishesCannotBeFollowed) {
  for (const bool assistant_only : {false, true}) {
    options_.assistant_only_loss = assistant_only;
    const auto error = [&](const char* answer) {
      return error_of<FormatError>({kChat, chat_with("", answer)});
    };
    EXPECT_THAT(error(R"(, "weight": 0.5)"),
                HasSubstr("f.jsonl:2: message 2: found 0.5 as \"weight\", expected 0"));
    EXPECT_THAT(error(R"(, "weight": "0")"), HasSubstr("found \"0\" as \"weight\""));
    EXPECT_THAT(error(R"(, "train": 1)"), HasSubstr("found 1 as \"train\", expected true"));
    EXPECT_THAT(error(R"(, "weight": 1, "train": false)"), HasSubstr("contradict each other"));
  }
  EXPECT_THAT(
      error_of<FormatError>({kChat, R"({"messages": [{"role": "user", "content": "x"},)"
                                    R"( {"role": "assistant", "content": "y", "weight": 0}]})"}),
      HasSubstr("f.jsonl:2: found no token that the assistant wrote and that is learnt"));
}

// A template may write more blocks than there are answers: those inside the answer count.
TEST_F(PrepareTest, LeavesOutAllBlocksOfAnAnswer) {
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
TEST_F(PrepareTest, TakesNoBlockForAnotherAnswer) {
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
TEST_F(PrepareTest, CutsAnAnswerOutOfALargerBlock) {
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
TEST_F(PrepareTest, FollowsWishesOfHiddenMessages) {
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
TEST_F(PrepareTest, FindsTheAnswerThatBeginsAConversation) {
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
TEST_F(PrepareTest, FindsChangedAnswersOfEveryContent) {
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

TEST_F(PrepareTest, CountsColumnsThatNothingIsMadeOf) {
  const Dataset dataset = prepare_lines(
      {R"({"text": "a", "id": 1, "source": "x"})", R"({"text": "b", "id": 2, "source": null})"});
  EXPECT_EQ(dataset.unused_columns, (std::map<std::string, int64_t>{{"id", 2}, {"source", 1}}));
  EXPECT_TRUE(prepare_lines({R"({"instruction": "a", "input": "", "output": "b", "system": "s",)"
                             R"( "history": [["q", "r"]], "tools": []})"})
                  .unused_columns.empty());
  EXPECT_TRUE(prepare_lines({R"({"conversations": [{"from": "human", "value": "a"}],)"
                             R"( "system": "s", "tools": "[]"})"})
                  .unused_columns.empty());
}

TEST_F(PrepareTest, NamesTheRowThatTheAssistantBegins) {
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

TEST_F(PrepareTest, RefusesRowsWithoutAssistant) {
  options_.assistant_only_loss = true;
  EXPECT_THAT(error_of<FormatError>({kChat, R"({"messages": [{"role": "user", "content": "x"}]})"}),
              HasSubstr("f.jsonl:2: found no token that the assistant wrote"));
}

TEST_F(PrepareTest, PassesToolsAndVariablesToTheTemplate) {
  const text::ChatTemplate tmpl("{{ tools[0].name }}{{ mood }}{{ messages[0].content }}", "t");
  for (const char* tools : {R"([{"name": "f"}])", R"("[{\"name\": \"f\"}]")"}) {
    const Dataset dataset =
        prepare(rows_of({R"({"messages": [{"role": "user", "content": "x"}], "tools": )" +
                         std::string(tools) + R"(, "chat_template_kwargs": {"mood": "!"}})"}),
                *tokenizer_, &tmpl, options_);
    EXPECT_EQ(text_of(dataset.rows[0]), "f!x");
  }
}

TEST_F(PrepareTest, DropsRowsThatTruncationLeavesUntrained) {
  options_.max_length = 5;
  const Dataset dataset = prepare_lines(
      {R"({"prompt": "abcdef", "completion": "g"})", R"({"prompt": "a", "completion": "bc"})"});
  ASSERT_EQ(dataset.rows.size(), 1u);
  EXPECT_EQ(labels_of(dataset.rows[0]), "__bc</s>");
  EXPECT_EQ(dataset.num_dropped, 1);
  EXPECT_EQ(dataset.num_tokens, 5);
  EXPECT_EQ(dataset.num_targets, 3);
  EXPECT_THAT(error_of<FormatError>({R"({"prompt": "abcdef", "completion": "g"})"}),
              AllOf(HasSubstr("train split: found no token to train on in 1 rows (1 of them"),
                    HasSubstr("max_length 5")));
}

TEST_F(PrepareTest, ReadsTokens) {
  EXPECT_THAT(prepare_lines({R"({"input_ids": [1, 2], "labels": [-100, 2]})"}).rows[0].labels,
              ElementsAre(-100, 2));
  EXPECT_THAT(
      prepare_lines({R"({"input_ids": [1, 2, 3], "assistant_masks": [0, 1, 1]})"}).rows[0].labels,
      ElementsAre(-100, 2, 3));
  const std::string masked = R"({"input_ids": [1, 2], "completion_mask": [0, 1]})";
  EXPECT_THAT(prepare_lines({masked}).rows[0].labels, ElementsAre(1, 2));
  options_.completion_only_loss = true;
  EXPECT_THAT(prepare_lines({masked}).rows[0].labels, ElementsAre(-100, 2));
}

TEST_F(PrepareTest, ChecksTokens) {
  EXPECT_THAT(error_of<FormatError>({R"({"input_ids": [1, 2], "labels": [1]})"}),
              HasSubstr("f.jsonl:1: found 1 values in \"labels\", expected 2"));
  EXPECT_THAT(error_of<FormatError>({R"({"input_ids": [1, 2], "labels": [1, -7]})"}),
              HasSubstr("found label -7 at position 1"));
  options_.vocab_size = 100;
  EXPECT_THAT(error_of<FormatError>({R"({"input_ids": [1, 100]})"}),
              HasSubstr("f.jsonl:1: found token id 100 at position 1, expected ids below 100"));
  EXPECT_THAT(error_of<FormatError>({R"({"text": "ab"})"}), HasSubstr("found token id 256"));
}

TEST_F(PrepareTest, PacksAndMayMergeDocuments) {
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

TEST_F(PrepareTest, ShufflesAsDatasetsDoes) {
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

TEST_F(PrepareTest, DoesNotDependOnTheNumberOfThreads) {
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

// Oracle: the rows in memory in the mixture's order, prepared alone.
TEST_F(PrepareTest, MixesRowsThatWaitOnDisk) {
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
      folder.write("a.jsonl", first).string() + "," + folder.write("b.jsonl", second).string();
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
TEST_F(PrepareTest, TheFirstBadRowWins) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 1; i <= 4000; ++i) {
    text += i == 3100 ? R"({"text": 3})" : i == 3200 ? "nonsense" : R"({"text": "x"})";
    text += "\n";
  }
  const DataRequest request{.names = folder.write("a.jsonl", text).string()};
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

TEST_F(PrepareTest, StopsWithEnoughRows) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 9000; ++i)
    text += R"({"text": "x"})"
            "\n";
  text += "nonsense that nobody reads\n";
  const DataRequest request{.names = folder.write("a.jsonl", text).string()};
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

TEST_F(PrepareTest, EndsEveryRowWhereThatIsAskedFor) {
  options_.append_concat_token = true;
  EXPECT_EQ(labels_of_line(kChat), "<s><|u|>hi<|e|><|a|>yo<|e|><|u|>q<|e|><|a|>z<|e|></s>");
  EXPECT_EQ(labels_of_line(R"({"text": "ab"})"), "<s>ab</s>");
  options_.add_special_tokens = false;
  EXPECT_EQ(labels_of_line(R"({"text": "ab"})"), "ab</s>");
  options_.add_special_tokens = true;
  EXPECT_EQ(labels_of_line(R"({"messages": [{"role": "user", "content": "x"}]})"),
            "<s><s><|u|>x<|e|></s>");
}

TEST_F(PrepareTest, NamesTheRowATemplateFailsOn) {
  const text::ChatTemplate failing("{{ raise_exception('only users') }}", "t");
  EXPECT_THAT(
      message_of<FormatError>([&] { prepare(rows_of({kChat}), *tokenizer_, &failing, options_); }),
      AllOf(HasSubstr("f.jsonl:1: "), HasSubstr("only users")));
}

TEST_F(PrepareTest, RefusesOptionsThatDoNotGoTogether) {
  const std::string text = R"({"text": "a"})";
  EXPECT_THAT(
      message_of<ConfigError>([&] { prepare(rows_of({kChat}), *tokenizer_, nullptr, options_); }),
      HasSubstr("--chat_template_path"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                prepare(rows_of({text}), *make_byte_tokenizer(false), nullptr, options_);
              }),
              HasSubstr("--eos_token"));
  options_.completion_only_loss = true;
  EXPECT_THAT(error_of<ConfigError>({text}), HasSubstr("completion_only_loss"));
  options_.completion_only_loss.reset();
  options_.assistant_only_loss = true;
  EXPECT_THAT(error_of<ConfigError>({text}), HasSubstr("assistant_only_loss"));
  options_.assistant_only_loss = false;
  options_.max_length = 0;
  options_.packing = true;
  EXPECT_THAT(error_of<ConfigError>({text}), HasSubstr("max_length"));
  options_.max_length = 4;
  options_.packing_strategy = "tight";
  EXPECT_THAT(error_of<ConfigError>({text}), HasSubstr("packing_strategy: found \"tight\""));
}

TEST_F(PrepareTest, RefusesEmptyAndMixedSets) {
  EXPECT_THAT(error_of<FormatError>({}), HasSubstr("train split: found no rows"));
  EXPECT_THAT(error_of<FormatError>({R"({"text": "a"})", kChat}),
              HasSubstr("f.jsonl:2: found a row of messages, expected a text row as in f.jsonl:1"));
}

TEST_F(PrepareTest, CountsPromptsThatTokenizeOtherwiseAlone) {
  const text::ChatTemplate tmpl(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}?{% endif "
      "%}",
      "t");
  const Dataset dataset =
      prepare(rows_of({R"({"prompt": [{"role": "user", "content": "a"}],)"
                       R"( "completion": [{"role": "assistant", "content": "b"}]})"}),
              *tokenizer_, &tmpl, options_);
  EXPECT_EQ(dataset.num_split_prompts, 1);
  EXPECT_EQ(labels_of(dataset.rows[0]), "_b");
}

}  // namespace
}  // namespace strata::data
