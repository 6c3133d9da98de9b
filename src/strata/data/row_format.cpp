#include "strata/data/row_format.h"

#include <map>

#include <fmt/ranges.h>

#include "strata/base/error.h"

namespace strata::data {
namespace {

const char* type_of(const Json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_string()) return "a string";
  if (value->is_array()) return value->empty() ? "an empty list" : "a list";
  if (value->is_object()) return "an object";
  if (value->is_boolean()) return "a boolean";
  return value->is_null() ? "null" : "a number";
}

std::string column_names(const Row& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.fields.items()) {
    if (!value.is_null()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

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
    case RowKind::kTokens:
      break;
  }
  return fmt::format("a row of input_ids{}{}{}", format.has_labels ? " with labels" : "",
                     format.has_completion_mask ? " with completion_mask" : "",
                     format.has_assistant_masks ? " with assistant_masks" : "");
}

RowFormat prompt_format(const Row& row, const Json& prompt) {
  const Json* completion = row.find("completion");
  if (completion == nullptr) {
    throw FormatError(
        "{}: found a column \"prompt\" without \"completion\" (columns: {}), expected both; add "
        "the completion, or rename the column and pass --dataset_text_field",
        row.where(), column_names(row));
  }
  if (prompt.is_string() && completion->is_string()) return {.kind = RowKind::kPromptText};
  if (prompt.is_array() && completion->is_array()) return {.kind = RowKind::kPromptMessages};
  throw FormatError(
      "{}: found {} in \"prompt\" and {} in \"completion\", expected two strings or two lists of "
      "messages",
      row.where(), type_of(&prompt), type_of(completion));
}

[[noreturn]] void refuse_columns(const Row& row, const std::string& text_field) {
  throw FormatError(
      "{}: found columns [{}], expected \"{}\", \"messages\", \"prompt\" with \"completion\" or "
      "\"instruction\" with \"output\"; name them with --dataset_columns, or the text column with "
      "--dataset_text_field",
      row.where(), column_names(row), text_field);
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
  const bool prompt_is_text = text_field == "prompt" && row.find("completion") == nullptr;
  if (prompt != nullptr && !prompt_is_text) return prompt_format(row, *prompt);
  const Json* messages = row.find("messages");
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

void require_format(const Row& row, const std::string& text_field, const RowFormat& format,
                    const std::string& first_row) {
  const RowFormat found = detect_format(row, text_field);
  if (found == format) return;
  throw FormatError("{}: found {}, expected {} as in {}; give all rows of a set the same columns",
                    row.where(), describe(found), describe(format), first_row);
}

namespace {

// The names that ShareGPT data use for the roles of chat templates.
Json renamed_role(const Json& role) {
  static const std::map<std::string, std::string> kNames = {{"human", "user"},
                                                            {"gpt", "assistant"},
                                                            {"bot", "assistant"},
                                                            {"chatgpt", "assistant"},
                                                            {"model", "assistant"}};
  if (!role.is_string()) return role;
  const auto it = kNames.find(role.get_ref<const std::string&>());
  return it == kNames.end() ? role : Json(it->second);
}

}  // namespace

Json read_messages(const Row& row, const std::string& column) {
  const Json* list = row.find(column);
  if (list == nullptr || !list->is_array() || list->empty()) {
    throw FormatError("{}: found {} in \"{}\", expected a list of messages with role and content",
                      row.where(), type_of(list), column);
  }
  Json messages = Json::array();
  for (const Json& source : *list) {
    const auto refuse = [&](const std::string& found) {
      throw FormatError(
          "{}: found {} in message {} of \"{}\", expected an object with \"role\" (a string) and "
          "\"content\"",
          row.where(), found, messages.size() + 1, column);
    };
    if (!source.is_object()) refuse(type_of(&source));
    Json message = Json::object();
    for (const auto& [key, value] : source.items()) {
      if (column != "conversations") {
        message[key] = value;
      } else if (key == "from") {
        message["role"] = renamed_role(value);
      } else {
        message[key == "value" ? "content" : key] = value;
      }
    }
    const auto role = message.find("role");
    if (role == message.end()) refuse("no \"role\"");
    if (!role->is_string()) refuse(fmt::format("{} as \"role\"", type_of(&*role)));
    const auto content = message.find("content");
    const bool has_content = content != message.end() && !content->is_null();
    if (!has_content && message.size() == (content == message.end() ? 1u : 2u)) {
      refuse("no \"content\"");
    }
    if (has_content && !content->is_string() && !content->is_array()) {
      refuse(fmt::format("{} as \"content\"", type_of(&*content)));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

Json read_instruction(const Row& row) {
  std::string question = read_string(row, "instruction");
  if (row.find("input") != nullptr) {
    const std::string& input = read_string(row, "input");
    if (!input.empty()) question += "\n\n" + input;
  }
  Json prompt = Json::array();
  if (row.find("system") != nullptr && !read_string(row, "system").empty()) {
    prompt.push_back({{"role", "system"}, {"content", read_string(row, "system")}});
  }
  prompt.push_back({{"role", "user"}, {"content", std::move(question)}});
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
