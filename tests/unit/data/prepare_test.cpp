// Oracle: rows that TRL's SFTTrainer prepares from the same input with the same tokenizer (golden
// strings), and the text of each error.
#include "strata/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prepared_rows.h"
#include "strata/base/error.h"

namespace strata::data {
namespace {

using strata::testing::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PrepareTest : public PreparedRows {};

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

// Names and ids that stand in the place of columns and roles fill neither memory nor messages.
TEST_F(PrepareTest, CountsFewColumnsAndRolesApart) {
  std::vector<std::string> texts, chats;
  for (int i = 0; i < 200; ++i) {
    const std::string name = "n" + std::to_string(1000 + i);
    texts.push_back(R"({"text": "a", "id": 1, ")" + name + R"(": 1})");
    chats.push_back(R"({"messages": [{"role": ")" + name +
                    R"(", "content": "x"}, {"role": "assistant", "content": "y"}]})");
  }
  const auto unused = prepare_lines(texts).unused_columns;
  EXPECT_EQ(unused.size(), kCountedNames + 1);
  EXPECT_EQ(unused.at("id"), 200);
  EXPECT_EQ(unused.at("n1000"), 1);
  EXPECT_EQ(unused.at(kOtherNames), 200 - (static_cast<int64_t>(kCountedNames) - 1));
  const Dataset found = prepare_lines(chats);
  EXPECT_EQ(found.roles.size(), kCountedNames + 1);
  EXPECT_EQ(found.roles.at("assistant"), 200);
  EXPECT_EQ(found.roles.at(kOtherNames), 200 - (static_cast<int64_t>(kCountedNames) - 1));
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
              AllOf(HasSubstr("train split: found no token to train on in 1 row (1 of them"),
                    HasSubstr("1 longer than max_length 5 (truncate)")));
  options_.long_rows = "drop";
  EXPECT_THAT(error_of<FormatError>({R"({"prompt": "abcdef", "completion": "g"})"}),
              AllOf(HasSubstr("(0 of them"), HasSubstr("1 longer than max_length 5 (drop)")));
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

TEST_F(PrepareTest, NamesContentsThatATemplateForTextsCannotTake) {
  const std::string parts =
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},)"
      R"( {"role": "assistant", "content": "yo"}]})";
  const text::ChatTemplate adds("{% for m in messages %}{{ m.role + m.content }}{% endfor %}", "t");
  EXPECT_THAT(
      message_of<FormatError>([&] { prepare(rows_of({parts}), *tokenizer_, &adds, options_); }),
      AllOf(HasSubstr("f.jsonl:1: t: line 1: unsupported operand type(s)"),
            HasSubstr("a message has a list of parts as content: give it as one text")));
  const std::string call =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null,)"
      R"( "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}]})";
  EXPECT_THAT(
      message_of<FormatError>([&] { prepare(rows_of({call}), *tokenizer_, &adds, options_); }),
      HasSubstr("a message has no content: give it an empty text"));
  const text::ChatTemplate prints("{% for m in messages %}{{ m.content | trim }}{% endfor %}", "t");
  const Dataset dataset = prepare(rows_of({kChat, parts}), *tokenizer_, &prints, options_);
  EXPECT_EQ(text_of(dataset.rows[1]), "[{'type': 'text', 'text': 'hi'}]yo");
  EXPECT_EQ(
      dataset.printed_parts,
      (std::map<std::string, HiddenTexts>{{"contents of role \"user\"", {1, {"f.jsonl:2"}}}}));
  EXPECT_TRUE(dataset.hidden_texts.empty());
  const std::string returned =
      R"({"messages": [{"role": "tool", "content": {"r": true}}, {"role": "assistant", "content": "a"}]})";
  const Dataset tools = prepare(rows_of({returned}), *tokenizer_, &prints, options_);
  EXPECT_EQ(text_of(tools.rows[0]), "{'r': True}a");
  EXPECT_TRUE(tools.printed_parts.contains("contents of role \"tool\""));
  const text::ChatTemplate knows(
      "{% for m in messages %}{{ m.content | tojson if m.content is mapping else m.content }}"
      "{% endfor %}",
      "t");
  EXPECT_TRUE(prepare(rows_of({returned}), *tokenizer_, &knows, options_).printed_parts.empty());
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
  options_.skip_bad_rows = true;
  EXPECT_THAT(error_of<FormatError>({R"({"input_ids": [1], "labels": [1, 2]})"}),
              AllOf(HasSubstr("found no token to train on in 1 row"),
                    HasSubstr("1 bad), expected at least one; check the label masks and "
                              "max_length; the first bad row: f.jsonl:1: found 2 values")));
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
