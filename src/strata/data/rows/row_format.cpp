#include "strata/data/rows/row_format.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/data/dataset_stats.h"
#include "strata/data/files/column_advice.h"
#include "strata/data/files/known_exports.h"
#include "strata/data/rows/preference_row.h"

namespace strata::data {

const char* type_of(const Json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_string()) return "a string";
  if (value->is_array()) return value->empty() ? "an empty list" : "a list";
  if (value->is_object()) return "an object";
  if (value->is_boolean()) return "a boolean";
  return value->is_null() ? "null" : "a number";
}

namespace {

std::string describe(const RowFormat& format) {
  switch (format.kind) {
    case RowKind::kText:
      return "a text row";
    case RowKind::kMessages:
      return "a row of messages";
    case RowKind::kPromptText:
      return "a row of prompt and completion strings";
    case RowKind::kPromptMessages:
      return "a row of prompt and completion messages";
    case RowKind::kInstruction:
      return "a row of instruction and output";
    case RowKind::kPair:
      return "a row of source and target";
    case RowKind::kPreferenceText:
    case RowKind::kPreferenceMessages:
      return fmt::format("preferences of {}{}",
                         format.kind == RowKind::kPreferenceText ? "text" : "messages",
                         format.shares_prompt ? " without a prompt of their own" : "");
    case RowKind::kRatedText:
      return "a rated answer of text";
    case RowKind::kRatedMessages:
      return "a rated answer of messages";
    case RowKind::kLabelled:
      return "a row of a text and a label";
    case RowKind::kTokens:
      break;
  }
  return fmt::format("a row of input_ids{}{}{}", format.has_labels ? " with labels" : "",
                     format.has_completion_mask ? " with completion_mask" : "",
                     format.has_assistant_masks ? " with assistant_masks" : "");
}

RowFormat prompt_format(const Row& row, const Json& prompt, const std::string& text_field) {
  const Json* completion = row.find("completion");
  if (completion == nullptr) refuse_columns(row, text_field);
  if (prompt.is_string() && completion->is_string()) return {.kind = RowKind::kPromptText};
  if (prompt.is_array() && completion->is_array()) return {.kind = RowKind::kPromptMessages};
  throw FormatError(
      "{}: found {} in \"prompt\" and {} in \"completion\", expected two strings or two lists of "
      "messages",
      row.where(), type_of(&prompt), type_of(completion));
}

}  // namespace

RowFormat detect_format(const Row& row, const std::string& text_field) {
  if (row.find("input_ids") != nullptr) {
    const bool labelled = row.find("labels") != nullptr;
    return {.kind = RowKind::kTokens,
            .has_labels = labelled,
            .has_completion_mask = !labelled && row.find("completion_mask") != nullptr,
            .has_assistant_masks = !labelled && row.find("assistant_masks") != nullptr};
  }
  if (row.find("conversations") != nullptr) return {.kind = RowKind::kMessages};
  const Json* prompt = row.find("prompt");
  const Json* messages = row.find("messages");
  // A conversation may have its first question beside it once more.
  const bool has_list = messages != nullptr && messages->is_array() && text_field != "messages";
  const bool is_other = text_field == "prompt" || has_list;
  if (prompt != nullptr && !(is_other && row.find("completion") == nullptr)) {
    return prompt_format(row, *prompt, text_field);
  }
  const bool has_text = row.find(text_field) != nullptr;
  if (messages != nullptr && text_field != "messages" && (messages->is_array() || !has_text)) {
    return {.kind = RowKind::kMessages};
  }
  if (has_text) return {.kind = RowKind::kText};
  if (row.find("instruction") != nullptr && row.find("output") != nullptr) {
    return {.kind = RowKind::kInstruction};
  }
  refuse_columns(row, text_field);
}

void require_format(const Row& row, const RowFormat& found, const RowFormat& format,
                    const std::string& first_row) {
  if (found == format) return;
  throw FormatError("{}: found {}, expected {} as in {}; give all rows of a set the same columns",
                    row.where(), describe(found), describe(format), first_row);
}

namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Whether a column has a part in what a row becomes.
bool is_used(const std::string& column, const Row& row, const RowFormat& format,
             const std::string& text_field) {
  const bool is_template_variable = is_one_of(column, {"tools", "chat_template_kwargs"});
  switch (format.kind) {
    case RowKind::kText:
      return column == text_field;
    case RowKind::kMessages:
      return is_template_variable || is_one_of(column, {"messages", "conversations", "system"});
    case RowKind::kPromptText:
      return column == text_field || is_one_of(column, {"prompt", "completion"});
    case RowKind::kPromptMessages:
      return is_template_variable || is_one_of(column, {"prompt", "completion"});
    case RowKind::kInstruction:
      return is_template_variable ||
             is_one_of(column, {"instruction", "input", "output", "system", "history"});
    case RowKind::kTokens:
      return is_one_of(
          column, {"input_ids", "labels", "attention_mask", "completion_mask", "assistant_masks"});
    case RowKind::kPreferenceText:
    case RowKind::kPreferenceMessages:
      return is_used_in_preference(column, row, format);
    case RowKind::kRatedText:
      return is_one_of(column, {"prompt", "completion", "label"});
    case RowKind::kRatedMessages:
      return is_template_variable || is_one_of(column, {"prompt", "completion", "label", "system"});
    case RowKind::kLabelled:
      return column == format.label_column || std::ranges::count(format.text_columns, column) > 0 ||
             std::ranges::count(format.pair_columns, column) > 0;
    case RowKind::kPair:
      break;  // the two columns are chosen by settings, or by their places
  }
  return true;
}

}  // namespace

void count_unused_columns(const Row& row, const RowFormat& format, const std::string& text_field,
                          std::map<std::string, int64_t>& unused) {
  for (const auto& [name, value] : row.fields.items()) {
    if (!value.is_null() && !is_used(name, row, format, text_field)) count_name(name, unused);
  }
}

bool reads_text_field(const Row& row, const RowFormat& format, const std::string& text_field) {
  if (format.kind == RowKind::kText) return true;
  if (format.kind == RowKind::kLabelled) {
    return std::ranges::count(format.text_columns, text_field) > 0;
  }
  return format.kind == RowKind::kPromptText && row.find(text_field) != nullptr;
}

namespace {

// The names that ShareGPT data use for the roles of chat templates.
Json renamed_role(const Json& role) {
  static const std::map<std::string, std::string> kNames = {{"human", "user"},
                                                            {"gpt", "assistant"},
                                                            {"bot", "assistant"},
                                                            {"chatgpt", "assistant"},
                                                            {"model", "assistant"},
                                                            {"observation", "tool"},
                                                            {"function_call", "assistant"}};
  if (!role.is_string()) return role;
  const auto it = kNames.find(role.get_ref<const std::string&>());
  return it == kNames.end() ? role : Json(it->second);
}

// What a tool returned may be an object, which templates write as JSON.
bool is_role_of_tools(std::string_view role) {
  return role == "tool" || role == "ipython" || role == "function" || role == "observation";
}

bool is_call(const Json& json) {
  return json.is_object() && json.contains("name") && json.contains("arguments");
}

// A function_call's text {"name": ..., "arguments": ...}, or a list of them, as tool_calls. What is
// no such JSON stays text.
void use_tool_calls(Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return;
  Json calls;
  try {
    calls = parse_json_exactly(content->get_ref<const std::string&>(), "function_call");
  } catch (const FormatError&) {
    return;
  }
  if (is_call(calls)) calls = Json::array({calls});
  if (!calls.is_array() || calls.empty() || !std::ranges::all_of(calls, is_call)) return;
  Json list = Json::array();
  for (Json& call : calls) {
    list.push_back({{"type", "function"}, {"function", std::move(call)}});
  }
  message["content"] = "";
  message["tool_calls"] = std::move(list);
}

// {"from": ..., "value": ...} as {"role": ..., "content": ...}.
Json renamed_message(const Json& source) {
  Json message = Json::object();
  for (const auto& [key, value] : source.items()) {
    if (key == "from") {
      message["role"] = renamed_role(value);
    } else {
      message[key == "value" ? "content" : key] = value;
    }
  }
  if (const auto from = source.find("from"); from != source.end() && *from == "function_call") {
    use_tool_calls(message);
  }
  return message;
}

const std::string* text_or_null(const Row& row, const std::string& column) {
  if (row.find(column) == nullptr) return nullptr;
  const std::string& text = read_string(row, column);
  return text.empty() ? nullptr : &text;
}

// The pairs of an Alpaca row's history, as messages.
void add_history(const Row& row, Json& messages) {
  const Json* history = row.find("history");
  if (history == nullptr) return;
  const auto is_pair = [](const Json& pair) {
    return pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
  };
  if (!history->is_array() || !std::ranges::all_of(*history, is_pair)) {
    throw FormatError(
        "{}: found {} in \"history\", expected a list of pairs [instruction, response] of strings",
        row.where(), history->is_array() ? "something else than pairs" : type_of(history));
  }
  for (const Json& pair : *history) {
    messages.push_back({{"role", "user"}, {"content", pair[0]}});
    messages.push_back({{"role", "assistant"}, {"content", pair[1]}});
  }
}

// Why JSON text is not the list that it begins as; empty: it is one.
std::string damage_of(const std::string& text, const std::string& column) {
  try {
    parse_json_exactly(text, column, {.duplicates = DuplicateKeys::kReject});
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

// What to do about a list that is a text, where it is none in JSON.
std::string advise_text(const Row& row, const std::string& column, const Json* list) {
  if (list == nullptr || !list->is_string()) return "";
  const auto& text = list->get_ref<const std::string&>();
  const bool is_python = text.starts_with("[{'");
  const std::string command = is_python && row.file ? literal_command(*row.file, column) : "";
  if (!command.empty()) return "; it is as Python prints it, write it as JSON: " + command;
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_begun = !is_python && first != std::string::npos && text[first] == '[';
  const std::string damage = is_begun ? damage_of(text, column) : "";
  if (!damage.empty()) return fmt::format("; its text is no such list in JSON ({})", damage);
  return "; write the list itself, not its text";
}

enum class Spelling { kRoleContent, kFromValue, kEither };

Json checked_messages(const Row& row, const std::string& column, const Json* list,
                      Spelling spelling) {
  if (list == nullptr || !list->is_array() || list->empty()) {
    throw FormatError("{}: found {} in \"{}\", expected a list of messages with role and content{}",
                      row.where(), type_of(list), column, advise_text(row, column, list));
  }
  Json messages = Json::array();
  for (const Json& source : *list) {
    const auto refuse = [&](const std::string& found) {
      throw FormatError(
          "{}: found {} in message {} of \"{}\", expected an object with \"role\" (a string) and "
          "\"content\" (a text, a list of parts, or what a tool returned){}",
          row.where(), found, messages.size() + 1, column, advise_messages(column, *list));
    };
    if (!source.is_object()) refuse(type_of(&source));
    const bool renames = spelling == Spelling::kFromValue ||
                         (spelling == Spelling::kEither && source.contains("from"));
    Json message = renames ? renamed_message(source) : source;
    const auto role = message.find("role");
    if (role == message.end()) refuse("no \"role\"");
    if (!role->is_string()) refuse(fmt::format("{} as \"role\"", type_of(&*role)));
    const auto content = message.find("content");
    const bool has_content = content != message.end() && !content->is_null();
    if (!has_content && message.size() == (content == message.end() ? 1u : 2u)) {
      refuse("no \"content\"");
    }
    const bool is_answer = is_role_of_tools(role->get_ref<const std::string&>());
    if (has_content && !content->is_string() && !content->is_array() &&
        !(content->is_object() && is_answer)) {
      refuse(fmt::format("{} as \"content\"", type_of(&*content)));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace

Json read_messages(const Row& row, const std::string& column) {
  return checked_messages(
      row, column, row.find(column),
      column == "conversations" ? Spelling::kFromValue : Spelling::kRoleContent);
}

Json read_messages_of(const Row& row, const std::string& column, const Json& list) {
  return checked_messages(row, column, &list, Spelling::kEither);
}

Json read_conversation(const Row& row) {
  const bool is_from_value = row.find("conversations") != nullptr;
  Json messages = read_messages(row, is_from_value ? "conversations" : "messages");
  add_system(row, messages);
  return messages;
}

void add_system(const Row& row, Json& messages) {
  const std::string* system = text_or_null(row, "system");
  if (system == nullptr) return;
  if (messages[0]["role"] != "system") {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", *system}});
  } else if (messages[0].value("content", Json()) != *system) {
    throw FormatError(
        "{}: found a system message and another text in \"system\", expected one of them",
        row.where());
  }
}

Json read_question(const Row& row) {
  std::string question = read_string(row, "instruction");
  if (row.find("input") != nullptr) {
    const std::string& input = read_string(row, "input");
    if (!input.empty()) question += "\n\n" + input;
  }
  Json prompt = Json::array();
  if (const std::string* system = text_or_null(row, "system")) {
    prompt.push_back({{"role", "system"}, {"content", *system}});
  }
  add_history(row, prompt);
  prompt.push_back({{"role", "user"}, {"content", std::move(question)}});
  return prompt;
}

Json read_instruction(const Row& row) {
  Json prompt = read_question(row);
  Json completion = Json::array();
  completion.push_back({{"role", "assistant"}, {"content", read_string(row, "output")}});
  return {{"prompt", std::move(prompt)}, {"completion", std::move(completion)}};
}

const std::string& read_string(const Row& row, const std::string& column) {
  const Json* value = row.find(column);
  if (value == nullptr || !value->is_string()) {
    throw FormatError("{}: found {} in \"{}\", expected a string", row.where(), type_of(value),
                      column);
  }
  return value->get_ref<const std::string&>();
}

std::vector<int32_t> read_integers(const Row& row, const std::string& column, int64_t low,
                                   int64_t high) {
  const Json* list = row.find(column);
  if (list == nullptr || !list->is_array()) {
    throw FormatError("{}: found {} in \"{}\", expected a list of integers", row.where(),
                      type_of(list), column);
  }
  std::vector<int32_t> values;
  values.reserve(list->size());
  for (const Json& item : *list) {
    if (!item.is_number_integer() && !item.is_boolean()) {
      throw FormatError("{}: found {} at position {} of \"{}\", expected an integer", row.where(),
                        type_of(&item), values.size(), column);
    }
    const int64_t value = item.is_boolean() ? item.get<bool>() : item.get<int64_t>();
    if (value < low || value > high) {
      throw FormatError("{}: found {} at position {} of \"{}\", expected {} to {}", row.where(),
                        value, values.size(), column, low, high);
    }
    values.push_back(static_cast<int32_t>(value));
  }
  return values;
}

}  // namespace strata::data
