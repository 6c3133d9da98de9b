// Oracle: TRL's description of the row kinds, and the text of each error.
#include "strata/data/rows/row_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/data/rows/unfolded_messages.h"

namespace strata::data {
namespace {

using strata::testing::message_of;
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
  EXPECT_EQ(kind_of(R"({"prompt": "q", "prompt_id": "7", "messages": []})"), RowKind::kMessages);
  EXPECT_EQ(kind_of(R"({"prompt": "a", "completion": "b", "messages": []})"), RowKind::kPromptText);
  EXPECT_EQ(kind_of(R"({"prompt": "a", "completion": "b"})"), RowKind::kPromptText);
  EXPECT_EQ(kind_of(R"({"prompt": [], "completion": []})"), RowKind::kPromptMessages);
  const RowFormat tokens =
      detect_format(row_of(R"({"input_ids": [1], "completion_mask": [1]})"), "text");
  EXPECT_EQ(tokens.kind, RowKind::kTokens);
  EXPECT_TRUE(tokens.has_completion_mask);
  EXPECT_FALSE(tokens.has_labels);
}

TEST(DetectFormat, ListsTheColumnsWhenNoneFits) {
  EXPECT_THAT(
      message_of<FormatError>([] { kind_of(R"({"body": "x", "id": 3, "text": null})"); }),
      AllOf(HasSubstr("f.jsonl:3: found columns [body, id] (null: text), expected \"text\""),
            HasSubstr("--dataset_text_field")));
  EXPECT_THAT(message_of<FormatError>([] { kind_of(R"({"body": "x"})"); }),
              HasSubstr("f.jsonl:3: found columns [body], expected \"text\""));
  EXPECT_THAT(message_of<FormatError>([] { kind_of(R"({"prompt": "x"})"); }),
              HasSubstr("without \"completion\""));
  EXPECT_THAT(message_of<FormatError>([] { kind_of(R"({"prompt": "x", "completion": []})"); }),
              HasSubstr("found a string in \"prompt\" and an empty list in \"completion\""));
}

TEST(DetectFormat, SaysHowPreferencesAreTrainedOn) {
  const auto error_of = [](const std::string& json) {
    return message_of<FormatError>([&] { kind_of(json); });
  };
  EXPECT_THAT(
      error_of(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"),
      AllOf(HasSubstr("f.jsonl:3: found preference data (columns: prompt, chosen, rejected)"),
            HasSubstr("--dataset_columns completion=chosen")));
  EXPECT_THAT(error_of(R"({"prompt": [], "chosen": [], "rejected": []})"),
              HasSubstr("--dataset_columns completion=chosen"));
  for (const char* whole : {R"({"prompt": "q", "chosen": [], "rejected": []})",
                            R"({"chosen": [], "rejected": [], "score": 1})"}) {
    EXPECT_THAT(error_of(whole), HasSubstr("--dataset_columns messages=chosen"));
  }
  EXPECT_THAT(error_of(R"({"chosen": "a", "rejected": "b"})"),
              HasSubstr("--dataset_columns text=chosen"));
  EXPECT_THAT(error_of(R"({"chosen": "a", "rejected": "b"})"), HasSubstr("with strata dpo, or"));
}

TEST(DetectFormat, RecognisesMisspeltColumns) {
  const auto error_of = [](const std::string& json) {
    return message_of<FormatError>([&] { kind_of(json); });
  };
  EXPECT_THAT(error_of(R"({"mesages": []})"),
              HasSubstr("; did you mean --dataset_columns messages=mesages?"));
  EXPECT_THAT(error_of(R"({"prompt": "q", "Completions": "a"})"),
              HasSubstr("; did you mean --dataset_columns completion=Completions?"));
  EXPECT_THAT(error_of(R"({"body": "x"})"), ::testing::Not(HasSubstr("did you mean")));
  // What is asked about is not left out.
  EXPECT_THAT(error_of(R"({"instruction": "q", "context": "", "response": "a"})"),
              HasSubstr("; did you mean --dataset_columns input=context output=response?"));
  EXPECT_THAT(
      error_of(R"({"context": "c", "question": "q", "answer": "a"})"),
      HasSubstr(
          "; did you mean --dataset_columns instruction=question input=context output=answer?"));
  EXPECT_THAT(error_of(R"({"problem": "q", "solution": "a"})"),
              HasSubstr("; did you mean --dataset_columns prompt=problem completion=solution?"));
}

TEST(DetectFormat, SaysHowTurnsBecomeMessages) {
  const auto error_of = [](const std::string& json) {
    return message_of<FormatError>([&] { kind_of(json); });
  };
  EXPECT_THAT(error_of(R"({"conversation": [{"input": "q", "output": "a"}]})"),
              HasSubstr("; write them as messages, with jq: "
                        R"(.messages=[."conversation"[]|{role:"user",content:."input"},)"
                        R"({role:"assistant",content:."output"}]|del(."conversation"))"));
  EXPECT_THAT(message_of<FormatError>([&] {
                read_messages(row_of(R"({"conversations": ["q", "a"]})"), "conversations");
              }),
              HasSubstr("; write them as messages, with jq: .messages=["));
  EXPECT_THAT(error_of(R"({"tags": ["q", "a"]})"), ::testing::Not(HasSubstr("jq")));
  // A list of other things beside a conversation or a question is not the rows.
  EXPECT_THAT(
      error_of(R"({"conversation": [{"role": "user", "content": "q"}], "flags": [{"x": 1}]})"),
      HasSubstr("; did you mean --dataset_columns messages=conversation?"));
  EXPECT_THAT(error_of(R"({"question": "q", "answer": "a", "facts": [{"x": 1}]})"),
              HasSubstr("; did you mean --dataset_columns prompt=question completion=answer?"));
  EXPECT_THAT(error_of(R"({"version": "1", "data": [{"x": 1}]})"),
              HasSubstr("around a list of rows (data)"));
}

TEST(DetectFormat, SaysHowExportsAreRewritten) {
  const auto error_of = [](const std::string& json) {
    return message_of<FormatError>([&] { kind_of(json); });
  };
  EXPECT_THAT(
      error_of(R"({"contents": [{"role": "model", "parts": [{"text": "a"}]}],)"
               R"( "systemInstruction": {"parts": [{"text": "s"}]}})"),
      AllOf(
          HasSubstr("f.jsonl:3: found a conversation as Gemini has it (\"parts\" in \"contents\"), "
                    "expected \"messages\"; write them so: jq -c '(arrays[],objects)|.messages=["),
          HasSubstr("|.system=(.systemInstruction|"), HasSubstr("' f.jsonl > rewritten.jsonl")));
  EXPECT_THAT(error_of(R"({"input": {"messages": []}, "preferred_output": [],)"
                       R"( "non_preferred_output": []})"),
              AllOf(HasSubstr("found preferences as OpenAI has them"),
                    HasSubstr("|.chosen=.preferred_output|"), HasSubstr("for strata dpo")));
  EXPECT_THAT(error_of(R"({"system": "SYSTEM: s", "chat": "USER: q\n\n\nASSISTANT: a"})"),
              HasSubstr("found a conversation as one text"));
  EXPECT_THAT(error_of(R"({"chat": "hello"})"), HasSubstr("found columns [chat]"));
}

TEST(DetectFormat, NamesCommandsThatCanBeRunAndSpareWhatTheyRead) {
  const auto error_of = [](const std::string& file, const std::string& json) {
    Row row = row_of(json);
    row.file = std::make_shared<const std::string>(file);
    return message_of<FormatError>([&] { detect_format(row, "text"); });
  };
  const std::string contents = R"({"contents": [{"parts": [{"text": "a"}]}]})";
  const std::string list = R"({"rewritten": [{"x": 1}]})";
  const std::string lists = R"({"a/b": [{"x": 1}], "c": [{"x": 1}]})";
  EXPECT_THAT(error_of("my rows.jsonl", contents),
              ::testing::EndsWith("' 'my rows.jsonl' > rewritten.jsonl"));
  EXPECT_THAT(error_of("a/rewritten.jsonl", contents),
              ::testing::EndsWith("' a/rewritten.jsonl > rewritten2.jsonl"));
  EXPECT_THAT(error_of("rewritten2.jsonl", contents),
              ::testing::EndsWith("' rewritten2.jsonl > rewritten.jsonl"));
  EXPECT_THAT(
      error_of("rewritten.jsonl", list),
      ::testing::EndsWith(R"(jq -c '.["rewritten"][]' rewritten.jsonl > rewritten2.jsonl)"));
  EXPECT_THAT(
      error_of("it's.json.gz", lists),
      ::testing::EndsWith(R"(gzip -dc 'it'\''s.json.gz' | jq -c '.["a/b"][]' > rewritten.jsonl)"));
  EXPECT_THAT(error_of("c.jsonl", R"({"c": [{"x": 1}], "d e": [{"x": 1}]})"),
              ::testing::EndsWith(" c.jsonl > rewritten.jsonl"));
  EXPECT_THAT(error_of("b.jsonl", R"({"d e": [{"x": 1}], "f": [{"x": 1}]})"),
              ::testing::EndsWith(" b.jsonl > 'd e.jsonl'"));
}

TEST(ReadMessages, SaysWhatIsWrongWithTheirJson) {
  const auto error_of = [](const std::string& text) {
    return message_of<FormatError>([&] {
      read_messages(row_of(Json{{"messages", text}}.dump()), "messages");
    });
  };
  EXPECT_THAT(error_of(R"([{"role": "user", "content": "q"}, {"role": "ass)"),
              HasSubstr("; its text is no such list in JSON (messages:1:49: found the end"));
  EXPECT_THAT(error_of(R"([{"role": "user", "content": "q", "content": "r"}])"),
              HasSubstr("; its text is no such list in JSON (messages:1:"));
  EXPECT_THAT(error_of("hello"), ::testing::EndsWith("; write the list itself, not its text"));
}

TEST(UnfoldMessages, MakesListsOfTextsAndOfListsSideBySide) {
  const auto unfolded = [](const std::string& json, const std::string& text_field = "text") {
    Row row = row_of(json);
    unfold_messages(row, text_field);
    return row.fields;
  };
  const Json expected = Json::parse(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  EXPECT_EQ(unfolded(R"({"messages": " [{\"role\": \"user\", \"content\": \"q\"},)"
                     R"( {\"role\": \"assistant\", \"content\": \"a\"}]"})"),
            expected);
  EXPECT_EQ(unfolded(R"({"messages": {"role": ["user", "assistant"], "content": ["q", "a"]}})"),
            expected);
  EXPECT_EQ(unfolded(R"({"conversations": {"from": ["human"], "value": ["q"]}})"),
            Json::parse(R"({"conversations": [{"from": "human", "value": "q"}]})"));
  // What is something else stays as it is.
  for (const char* other :
       {R"({"messages": "[no json"})", R"({"messages": "{}"})", R"({"messages": ""})",
        R"({"messages": "[1]", "text": "x"})", R"({"messages": {"role": ["a"], "content": []}})",
        R"({"messages": {"role": "user", "content": "q"}})", R"({"messages": {"a": [1]}})",
        R"({"messages": null})", R"({"dialog": "[1]"})"}) {
    EXPECT_EQ(unfolded(other), Json::parse(other));
  }
  EXPECT_EQ(unfolded(R"({"messages": "[1]"})", "messages"), Json::parse(R"({"messages": "[1]"})"));
}

TEST(UnfoldMessages, OfAnswersOnlyWhatIsMessagesIndeed) {
  const auto unfolded = [](const std::string& json) {
    Row row = row_of(json);
    unfold_messages(row, "text");
    return row.fields;
  };
  const Json ask = Json::parse(R"([{"role": "user", "content": "q"}])");
  const Json good = Json::parse(R"([{"role": "assistant", "content": "a"}])");
  const Json bad = Json::parse(R"([{"role": "assistant", "content": "b"}])");
  const Json both = {{"prompt", ask}, {"completion", good}};
  EXPECT_EQ(unfolded(Json{{"prompt", ask.dump()}, {"completion", good.dump()}}.dump()), both);
  EXPECT_EQ(unfolded(R"({"prompt": {"role": ["user"], "content": ["q"], "name": null},
                         "completion": {"role": ["assistant"], "content": ["a"]}})"),
            both);
  // A question may be plain.
  EXPECT_EQ(
      unfolded(Json{{"prompt", "q"}, {"chosen", good.dump()}, {"rejected", bad.dump()}}.dump()),
      (Json{{"prompt", "q"}, {"chosen", good}, {"rejected", bad}}));
  // Text that is to be written, even in brackets, and rows with a text of their own.
  for (const Json& other : {Json{{"prompt", "q"}, {"completion", "[1, 2]"}},
                            Json{{"prompt", ask.dump()}, {"completion", "a"}},
                            Json{{"prompt", "q"}, {"completion", R"([{"role": "user"}])"}},
                            Json{{"prompt", "q"}, {"completion", "[]"}},
                            Json{{"chosen", good.dump()}, {"rejected", "no"}},
                            Json{{"text", "t"}, {"completion", good.dump()}}}) {
    EXPECT_EQ(unfolded(other.dump()), other);
  }
}

TEST(ReadMessages, SaysHowPythonsTextBecomesJson) {
  Row row = row_of(R"({"messages": "[{'role': 'user', 'content': 'q'}]"})");
  row.file = std::make_shared<const std::string>("f.csv");
  EXPECT_THAT(
      message_of<FormatError>([&] { read_messages(row, "messages"); }),
      AllOf(HasSubstr("; it is as Python prints it, write it as JSON: python3 -c 'import ast"),
            HasSubstr("csv.DictReader(sys.stdin)]' < f.csv > rewritten.jsonl")));
}

TEST(RequireFormat, NamesBothRowsOfAMixedSet) {
  const RowFormat text = detect_format(row_of(R"({"text": "x"})"), "text");
  const auto require = [&text](const Row& row) {
    require_format(row, detect_format(row, "text"), text, "f.jsonl:1");
  };
  EXPECT_NO_THROW(require(row_of(R"({"text": "y"})")));
  EXPECT_THAT(
      message_of<FormatError>([&] { require(row_of(R"({"messages": [{"role": "user"}]})", 9)); }),
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
  EXPECT_THAT(error_of(R"([{"role": "user", "content": {"x": 1}}])"),
              HasSubstr("an object as \"content\""));
}

// As transformers hands it to the template.
TEST(ReadMessages, TakesAnObjectThatAToolReturned) {
  const std::string messages = R"([{"role": "tool", "content": {"r": [1, 2.5], "ok": true}}])";
  EXPECT_EQ(read_messages(row_of("{\"messages\": " + messages + "}"), "messages"),
            Json::parse(messages));
}

TEST(ReadMessages, RenamesTheRolesOfShareGpt) {
  const Json call = Json::parse(R"({"name": "f", "arguments": {"x": 1}})");
  const std::string row = Json{{"conversations",
                                {{{"from", "human"}, {"value", "q"}},
                                 {{"from", "function_call"}, {"value", call.dump()}},
                                 {{"from", "observation"}, {"value", "7"}},
                                 {{"from", "function_call"}, {"value", "no JSON"}},
                                 {{"from", "gpt"}, {"value", "a"}, {"weight", 0}}}}}
                              .dump();
  EXPECT_EQ(read_messages(row_of(row), "conversations"), Json::parse(R"([
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "",
     "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "7"},
    {"role": "assistant", "content": "no JSON"},
    {"role": "assistant", "content": "a", "weight": 0}])"));
}

TEST(ReadConversation, PutsTheSystemColumnFirst) {
  const auto read = [](const std::string& system, const std::string& first = "") {
    return read_conversation(row_of(R"({"system": )" + system + R"(, "conversations": [)" + first +
                                    R"({"from": "human", "value": "hi"}]})"));
  };
  const Json with_system =
      Json::parse(R"([{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}])");
  EXPECT_EQ(read("\"S\""), with_system);
  EXPECT_EQ(read("\"\"").size(), 1u);
  EXPECT_EQ(read("null").size(), 1u);
  const std::string first = R"({"from": "system", "value": "S"}, )";
  EXPECT_EQ(read("\"S\"", first), with_system);
  EXPECT_THAT(message_of<FormatError>([&] { read("\"T\"", first); }),
              HasSubstr("f.jsonl:3: found a system message and another text in \"system\""));
  EXPECT_THAT(message_of<FormatError>([&] { read("7"); }),
              HasSubstr("f.jsonl:3: found a number in \"system\""));
  EXPECT_EQ(read_conversation(
                row_of(R"({"system": "S", "messages": [{"role": "user", "content": "hi"}]})")),
            with_system);
}

TEST(ReadInstruction, PutsSystemAndHistoryBefore) {
  const auto read = [](const std::string& more) {
    return read_instruction(row_of(R"({"instruction": "q", "output": "a")" + more + "}"));
  };
  EXPECT_EQ(read(R"(, "system": "S", "history": [["q1", "a1"], ["q2", "a2"]], "input": "i")"),
            Json::parse(R"({"prompt": [{"role": "system", "content": "S"},
    {"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"},
    {"role": "user", "content": "q\n\ni"}], "completion": [{"role": "assistant", "content": "a"}]})"));
  for (const char* none : {"", R"(, "history": [])", R"(, "history": null, "system": "")"}) {
    EXPECT_EQ(read(none)["prompt"].size(), 1u);
  }
  EXPECT_THAT(message_of<FormatError>([&] { read(R"(, "history": "x")"); }),
              HasSubstr("f.jsonl:3: found a string in \"history\", expected a list of pairs"));
  EXPECT_THAT(message_of<FormatError>([&] { read(R"(, "history": [["a", "b"], ["c"]])"); }),
              HasSubstr("found something else than pairs in \"history\""));
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
