// Oracle: TRL's description of the row kinds, and the text of each error.
#include "strata/data/row_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "temporary_folder.h"

namespace strata::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Row row_of(const std::string& json, int64_t line = 3) {
  return {.fields = Json::parse(json),
          .file = std::make_shared<const std::string>("f.jsonl"),
          .line = line};
}

RowKind kind_of(const std::string& json, const std::string& text_field = "text") {
  return detect_format(row_of(json), text_field).kind;
}

TEST(DetectFormat, TellsTheKinds) {
  EXPECT_EQ(kind_of(R"({"text": "x", "id": 1})"), RowKind::kText);
  EXPECT_EQ(kind_of(R"({"body": "x"})", "body"), RowKind::kText);
  EXPECT_EQ(kind_of(R"({"prompt": "x"})", "prompt"), RowKind::kText);
  EXPECT_EQ(kind_of(R"({"messages": [], "text": "x"})"), RowKind::kMessages);
  EXPECT_EQ(kind_of(R"({"conversations": []})"), RowKind::kMessages);
  EXPECT_EQ(kind_of(R"({"prompt": "a", "completion": "b"})"), RowKind::kPromptText);
  EXPECT_EQ(kind_of(R"({"prompt": [], "completion": []})"), RowKind::kPromptMessages);
  const RowFormat tokens =
      detect_format(row_of(R"({"input_ids": [1], "completion_mask": [1]})"), "text");
  EXPECT_EQ(tokens.kind, RowKind::kTokens);
  EXPECT_TRUE(tokens.has_completion_mask);
  EXPECT_FALSE(tokens.has_labels);
}

TEST(DetectFormat, ListsTheColumnsWhenNoneFits) {
  EXPECT_THAT(message_of<FormatError>([] { kind_of(R"({"body": "x", "id": 3, "text": null})"); }),
              AllOf(HasSubstr("f.jsonl:3: found columns [body, id], expected \"text\""),
                    HasSubstr("--dataset_text_field")));
  EXPECT_THAT(message_of<FormatError>([] { kind_of(R"({"prompt": "x"})"); }),
              HasSubstr("without \"completion\""));
  EXPECT_THAT(message_of<FormatError>([] { kind_of(R"({"prompt": "x", "completion": []})"); }),
              HasSubstr("found a string in \"prompt\" and an empty list in \"completion\""));
}

TEST(RequireFormat, NamesBothRowsOfAMixedSet) {
  const RowFormat text = detect_format(row_of(R"({"text": "x"})"), "text");
  EXPECT_NO_THROW(require_format(row_of(R"({"text": "y"})"), "text", text, "f.jsonl:1"));
  EXPECT_THAT(message_of<FormatError>([&] {
                require_format(row_of(R"({"messages": [{"role": "user"}]})", 9), "text", text,
                               "f.jsonl:1");
              }),
              HasSubstr("f.jsonl:9: found a row of messages, expected a text row as in f.jsonl:1"));
}

TEST(ReadMessages, RenamesFromAndValue) {
  EXPECT_EQ(read_messages(row_of(R"({"conversations": [{"from": "user", "value": "hi"}]})"),
                          "conversations"),
            Json::parse(R"([{"role": "user", "content": "hi"}])"));
}

TEST(ReadMessages, KeepsToolCallsAndContentParts) {
  const std::string messages =
      R"([{"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]},)"
      R"( {"role": "user", "content": [{"type": "text", "text": "x"}]}])";
  EXPECT_EQ(read_messages(row_of("{\"messages\": " + messages + "}"), "messages"),
            Json::parse(messages));
}

TEST(ReadMessages, SaysWhichMessageIsWrong) {
  const auto error_of = [](const std::string& messages) {
    return message_of<FormatError>(
        [&] { read_messages(row_of("{\"messages\": " + messages + "}"), "messages"); });
  };
  EXPECT_THAT(error_of("\"hi\""), HasSubstr("f.jsonl:3: found a string in \"messages\""));
  EXPECT_THAT(error_of("[]"), HasSubstr("found an empty list"));
  EXPECT_THAT(error_of(R"([{"role": "user", "content": "x"}, "hi"])"),
              HasSubstr("found a string in message 2 of \"messages\""));
  EXPECT_THAT(error_of(R"([{"content": "x"}])"), HasSubstr("no \"role\" in message 1"));
  EXPECT_THAT(error_of(R"([{"role": 1, "content": "x"}])"), HasSubstr("a number as \"role\""));
  EXPECT_THAT(error_of(R"([{"role": "user"}])"), HasSubstr("no \"content\""));
  EXPECT_THAT(error_of(R"([{"role": "user", "content": null}])"), HasSubstr("no \"content\""));
  EXPECT_THAT(error_of(R"([{"role": "user", "content": 7}])"),
              HasSubstr("a number as \"content\""));
}

TEST(ReadIntegers, ChecksTypeAndRange) {
  const Row row = row_of(R"({"input_ids": [1, 2], "f": [1, 2.5], "s": "x", "b": [true, false]})");
  EXPECT_THAT(read_integers(row, "input_ids", 0, 9), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(read_integers(row, "b", 0, 1), ::testing::ElementsAre(1, 0));
  EXPECT_THAT(message_of<FormatError>([&] { read_integers(row, "input_ids", 0, 1); }),
              HasSubstr("f.jsonl:3: found 2 at position 1 of \"input_ids\", expected 0 to 1"));
  EXPECT_THAT(message_of<FormatError>([&] { read_integers(row, "f", 0, 9); }),
              HasSubstr("a number at position 1"));
  EXPECT_THAT(message_of<FormatError>([&] { read_integers(row, "s", 0, 9); }),
              HasSubstr("found a string in \"s\""));
}

}  // namespace
}  // namespace strata::data
