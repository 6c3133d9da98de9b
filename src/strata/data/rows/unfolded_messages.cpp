#include "strata/data/rows/unfolded_messages.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"

namespace strata::data {
namespace {

void unfold_text(Json& column) {
  const auto& text = column.get_ref<const std::string&>();
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '[') return;
  try {
    Json list = parse_json_exactly(text, "messages", {.duplicates = DuplicateKeys::kReject});
    column = std::move(list);
  } catch (const FormatError&) {  // told by who wants messages
  }
}

// What `datasets` has no value of stands beside the lists as null.
void unfold_lists(Json& column) {
  const auto roles = column.contains("role") ? column.find("role") : column.find("from");
  if (roles == column.end() || !roles->is_array()) return;
  const size_t size = roles->size();
  const bool are_lists = std::ranges::all_of(column, [size](const Json& list) {
    return list.is_null() || (list.is_array() && list.size() == size);
  });
  if (!are_lists) return;
  Json messages = Json::array();
  for (size_t i = 0; i < size; ++i) {
    Json message = Json::object();
    for (const auto& [key, list] : column.items()) {
      if (!list.is_null()) message[key] = list[i];
    }
    messages.push_back(std::move(message));
  }
  column = std::move(messages);
}

void unfold(Json& column) {
  if (column.is_string()) unfold_text(column);
  if (column.is_object()) unfold_lists(column);
}

bool are_messages(const Json& list) {
  return list.is_array() && !list.empty() && std::ranges::all_of(list, [](const Json& message) {
           return message.is_object() && message.contains("role") && message["role"].is_string() &&
                  message.contains("content");
         });
}

// The columns of answers, all of them or none.
void unfold_answers(Row& row, std::initializer_list<const char*> names) {
  Json answers = Json::object();
  for (const char* name : names) {
    const Json* column = row.find(name);
    if (column == nullptr || column->is_array()) return;
    answers[name] = *column;
    unfold(answers[name]);
    if (!are_messages(answers[name])) return;
  }
  for (const auto& [name, answer] : answers.items()) row.fields[name] = answer;
  const auto prompt = row.fields.find("prompt");
  if (prompt == row.fields.end() || prompt->is_array()) return;
  Json messages = *prompt;
  unfold(messages);
  if (are_messages(messages)) *prompt = std::move(messages);
}

}  // namespace

void unfold_messages(Row& row, const std::string& text_field) {
  for (const char* name : {"messages", "conversations"}) {
    const auto column = row.fields.find(name);
    if (column == row.fields.end() || name == text_field || row.find(text_field) != nullptr) {
      continue;
    }
    unfold(*column);
  }
  if (row.find(text_field) != nullptr) return;
  unfold_answers(row, {"completion"});
  unfold_answers(row, {"chosen", "rejected"});
}

}  // namespace strata::data
