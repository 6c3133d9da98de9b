#include "strata/data/files/column_advice.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"
#include "strata/data/files/known_exports.h"

namespace strata::data {
namespace {

// What exports call a conversation.
constexpr std::string_view kTurns[] = {"conversation", "conversations", "dialog", "dialogue",
                                       "turns",        "messages",      "chat"};
// What exports call a question and its answer.
constexpr std::string_view kAsked[] = {"question", "query",  "input",       "user",    "human",
                                       "prompt",   "source", "instruction", "problem", "inputs"};
constexpr std::string_view kAnswered[] = {"answer",    "response", "output",     "reply",
                                          "assistant", "target",   "completion", "solution",
                                          "answers",   "targets"};

std::vector<std::string> columns_of(const Row& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.fields.items()) {
    if (!value.is_null()) names.push_back(name);
  }
  return names;
}

[[noreturn]] void refuse_preferences(const Row& row) {
  const Json& chosen = *row.find("chosen");
  const Json* prompt = row.find("prompt");
  // A list beside a prompt of text is the whole conversation, as it is without a prompt.
  const bool is_whole = prompt == nullptr || (chosen.is_array() && !prompt->is_array());
  const char* column = !is_whole ? "completion" : chosen.is_array() ? "messages" : "text";
  throw FormatError(
      "{}: found preference data (columns: {}), expected single answers to learn; train on both "
      "answers with strata dpo, or on the preferred ones with --dataset_columns {}=chosen",
      row.where(), column_names(row), column);
}

// " (null: text)": the reference reads null as a column that is not there.
std::string null_columns(const Row& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.fields.items()) {
    if (value.is_null()) names.push_back(name);
  }
  return names.empty() ? "" : fmt::format(" (null: {})", fmt::join(names, ", "));
}

// "; did you mean --dataset_columns messages=mesages?"
std::string misspelt(const Row& row, const std::vector<std::string>& known) {
  for (const std::string& column : columns_of(row)) {
    const auto near = closest(column, known);
    if (near && row.find(*near) == nullptr) {
      return fmt::format("; did you mean --dataset_columns {}={}?", *near, column);
    }
  }
  return "";
}

bool has_messages(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_object() &&
         (value[0].contains("role") || value[0].contains("from"));
}

// The first column of text that has one of the names, whatever its case.
std::string text_column(const Json& fields, std::span<const std::string_view> names) {
  for (const auto& [column, value] : fields.items()) {
    std::string low = column;
    std::ranges::transform(low, low.begin(), [](unsigned char c) { return std::tolower(c); });
    if (value.is_string() && std::ranges::find(names, low) != names.end()) return column;
  }
  return "";
}

// The same of other names than those that are close to known ones: what exports call them.
std::string renamed(const Row& row) {
  for (const auto& [column, value] : row.fields.items()) {
    if (has_messages(value)) {
      return fmt::format("; did you mean --dataset_columns messages={}?", column);
    }
  }
  for (const auto& [column, value] : row.fields.items()) {
    if (const std::string advice = advise_messages(column, value); !advice.empty()) return advice;
  }
  const Json& fields = row.fields;
  const std::string asked = text_column(fields, kAsked), answered = text_column(fields, kAnswered);
  if (asked.empty() || answered.empty()) return "";
  // What is asked about has a place beside the question.
  const std::string_view names[] = {"context"};
  const std::string context = row.find("input") == nullptr ? text_column(fields, names) : "";
  if (!context.empty()) {
    return fmt::format("; did you mean --dataset_columns {}input={} output={}?",
                       asked == "instruction" ? "" : "instruction=" + asked + " ", context,
                       answered);
  }
  // Beside an instruction its input is read, too.
  if (asked == "instruction") {
    return fmt::format("; did you mean --dataset_columns output={}?", answered);
  }
  return fmt::format("; did you mean --dataset_columns {}completion={}?",
                     asked == "prompt" ? "" : "prompt=" + asked + " ", answered);
}

std::string misspelt(const Row& row, const std::string& text_field) {
  if (const std::string hint = renamed(row); !hint.empty()) return hint;
  return misspelt(row, {text_field, "messages", "conversations", "prompt", "completion",
                        "instruction", "output"});
}

// The same for rated answers: misspelt, under a common name, or the one column of true and false.
std::string misnamed_rating(const Row& row, const std::vector<std::string>& missing) {
  const std::string near = misspelt(
      row, std::vector<std::string>{"prompt", "completion", "label", "chosen", "rejected"});
  if (!near.empty()) return near;
  std::vector<std::string> flags, columns;
  for (const std::string& name : missing) {
    if (name == "label") {
      columns.clear();
      for (const auto& [column, value] : row.fields.items()) {
        if (value.is_boolean()) columns.push_back(column);
      }
    } else {
      const std::string column =
          text_column(row.fields, name == "prompt" ? std::span<const std::string_view>(kAsked)
                                                   : std::span<const std::string_view>(kAnswered));
      columns = column.empty() ? std::vector<std::string>{} : std::vector{column};
    }
    if (columns.size() == 1) flags.push_back(name + "=" + columns[0]);
  }
  if (flags.empty()) return "";
  return fmt::format("; did you mean --dataset_columns {}?", fmt::join(flags, " "));
}

// Whether a run that imitates would find something in the row.
bool is_example(const Row& row, const std::string& text_field) {
  for (const std::string& column :
       {text_field, std::string("messages"), std::string("conversations"),
        std::string("completion"), std::string("output"), std::string("input_ids")}) {
    if (row.find(column) != nullptr) return true;
  }
  return false;
}

bool is_list_of_rows(const Json& value) {
  return value.is_array() && !value.empty() && std::ranges::all_of(value, [](const Json& item) {
           return item.is_object() && !item.contains("role") && !item.contains("from");
         });
}

}  // namespace

std::string advise_messages(const std::string& column, const Json& list) {
  const bool has_turns = std::ranges::find(kTurns, column) != std::end(kTurns);
  if (!has_turns || !list.is_array() || list.empty()) return "";
  std::string turns;
  if (std::ranges::all_of(list, [](const Json& turn) { return turn.is_string(); })) {
    turns = fmt::format(
        ".{}|to_entries[]|{{role:(if .key%2==0 then \"user\" else \"assistant\" end),"
        "content:.value}}",
        quote_json(column));
  } else if (std::ranges::all_of(list, [](const Json& turn) { return turn.is_object(); })) {
    const std::string asked = text_column(list[0], kAsked);
    const std::string answered = text_column(list[0], kAnswered);
    if (asked.empty() || answered.empty()) return "";
    turns = fmt::format(".{}[]|{{role:\"user\",content:.{}}},{{role:\"assistant\",content:.{}}}",
                        quote_json(column), quote_json(asked), quote_json(answered));
  }
  if (turns.empty()) return "";
  return fmt::format("; write them as messages, with jq: .messages=[{}]{}", turns,
                     column == "messages" ? "" : fmt::format("|del(.{})", quote_json(column)));
}

std::string column_names(const Row& row) {
  return fmt::format("{}", fmt::join(columns_of(row), ", "));
}

void refuse_columns(const Row& row, const std::string& text_field) {
  refuse_known_exports(row);
  if (const Json* tree = row.find("mapping"); tree != nullptr && tree->is_object()) {
    throw FormatError(
        "{}: found a conversation as ChatGPT exports it (a tree of messages in \"mapping\"), "
        "expected a list of them; write each branch as {{\"messages\": [{{\"role\": ..., "
        "\"content\": ...}}, ...]}}",
        row.where());
  }
  if (row.file && renamed(row).empty()) refuse_lists_of_rows(row.fields, row.where(), *row.file);
  if (row.find("chosen") != nullptr && row.find("rejected") != nullptr) refuse_preferences(row);
  if (row.find("prompt") != nullptr) {
    throw FormatError(
        "{}: found a column \"prompt\" without \"completion\" (columns: {}), expected both; add "
        "the completion, name its column with --dataset_columns completion=COLUMN, or rename the "
        "column and pass --dataset_text_field{}",
        row.where(), column_names(row), misspelt(row, text_field));
  }
  throw FormatError(
      "{}: found columns [{}]{}, expected \"{}\", \"messages\", \"prompt\" with \"completion\" or "
      "\"instruction\" with \"output\"; name them with --dataset_columns, or the text column with "
      "--dataset_text_field{}",
      row.where(), column_names(row), null_columns(row), text_field, misspelt(row, text_field));
}

void refuse_lists_of_rows(const Json& object, const std::string& place, const std::string& file) {
  std::vector<std::string> keys;
  if (!object.is_object()) return;
  for (const auto& [key, value] : object.items()) {
    if (has_messages(value)) return;  // a row with a conversation, and with lists of other things
    if (is_list_of_rows(value) && advise_messages(key, value).empty()) keys.push_back(key);
  }
  if (keys.empty()) return;
  const std::string own = keys[0] + ".jsonl";
  // The command must not write over what it reads, nor into another folder.
  const bool has_own = keys.size() > 1 && std::filesystem::path(file).filename() != own &&
                       own.find('/') == std::string::npos;
  throw FormatError(
      "{}: found one object around {} of rows ({}), expected one row on each line, or an array of "
      "rows; write each list into a file of its own: {}",
      place, keys.size() == 1 ? "a list" : "lists", fmt::join(keys, ", "),
      jq_command(file, fmt::format(".[{}][]", quote_json(keys[0])),
                 has_own ? own : rewritten_name(file)));
}

void refuse_as_preference(const Row& row, const std::string& text_field) {
  refuse_known_exports(row);
  if (row.file) refuse_lists_of_rows(row.fields, row.where(), *row.file);
  const std::string hint = misspelt(row, std::vector<std::string>{"prompt", "chosen", "rejected"});
  for (const auto& [there, missing] : {std::pair("chosen", "rejected"), {"rejected", "chosen"}}) {
    if (row.find(there) == nullptr) continue;
    throw FormatError(
        "{}: found a column \"{}\" without \"{}\" (columns: {}), expected both; add the other "
        "answers, or name their column with --dataset_columns {}=COLUMN{}",
        row.where(), there, missing, column_names(row), missing, hint);
  }
  const bool imitates = is_example(row, text_field);
  const bool is_rated =
      imitates && row.find("label") != nullptr && row.find("completion") != nullptr;
  throw FormatError(
      "{}: found {} (columns: {}), expected preferences: a better answer in \"chosen\" and a worse "
      "one in \"rejected\"; {}name them with --dataset_columns chosen=COLUMN rejected=COLUMN{}",
      row.where(),
      is_rated   ? "a rated answer"
      : imitates ? "an example to imitate"
                 : "no preferences",
      column_names(row),
      is_rated   ? "train on it with strata kto, or "
      : imitates ? "train on it with strata sft, or "
                 : "",
      hint);
}

void refuse_as_rated(const Row& row, const std::string& text_field) {
  refuse_known_exports(row);
  if (row.file) refuse_lists_of_rows(row.fields, row.where(), *row.file);
  const auto has = [&row](const char* column) { return row.find(column) != nullptr; };
  if (has("chosen") && has("rejected") && has("label") && !has("completion")) {
    throw FormatError(
        "{}: found \"label\" with \"chosen\" and \"rejected\", which already say what is "
        "desirable, expected one or the other; remove that column from the rows, or rename it",
        row.where());
  }
  std::vector<std::string> missing;
  for (const char* column : {"prompt", "completion", "label"}) {
    if (row.find(column) == nullptr) missing.emplace_back(column);
  }
  const Json* messages = row.find("messages");
  const bool is_rated = row.find("label") != nullptr;
  const bool is_other = missing.size() > 1 && is_example(row, text_field) && !is_rated;
  std::string advice = fmt::format("name them with --dataset_columns {}=COLUMN{}",
                                   fmt::join(missing, "=COLUMN "), misnamed_rating(row, missing));
  if (is_other) advice = "train on it with strata sft, or " + advice;
  if (is_rated && messages != nullptr && has_messages(*messages)) {
    advice =
        "write the last answer of \"messages\" as \"completion\" and what is before it as "
        "\"prompt\"";
  }
  throw FormatError(
      "{}: found {} without \"{}\" (columns: {}), expected rated answers: \"prompt\", "
      "\"completion\" and \"label\" (true: desirable), or preferences in \"chosen\" and "
      "\"rejected\"; {}",
      row.where(), is_other ? "an example to imitate" : "a row", fmt::join(missing, "\", \""),
      column_names(row), advice);
}

}  // namespace strata::data
