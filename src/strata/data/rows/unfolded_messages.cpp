#include "strata/data/rows/unfolded_messages.h"

#include <algorithm>
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

void unfold_lists(Json& column) {
  if (!column.contains("role") && !column.contains("from")) return;
  const size_t size = column.front().size();
  const bool are_lists = std::ranges::all_of(
      column, [size](const Json& list) { return list.is_array() && list.size() == size; });
  if (!are_lists) return;
  Json messages = Json::array();
  for (size_t i = 0; i < size; ++i) {
    Json message = Json::object();
    for (const auto& [key, list] : column.items()) message[key] = list[i];
    messages.push_back(std::move(message));
  }
  column = std::move(messages);
}

}  // namespace

void unfold_messages(Row& row, const std::string& text_field) {
  for (const char* name : {"messages", "conversations"}) {
    const auto column = row.fields.find(name);
    if (column == row.fields.end() || name == text_field || row.find(text_field) != nullptr) {
      continue;
    }
    if (column->is_string()) unfold_text(*column);
    if (column->is_object()) unfold_lists(*column);
  }
}

}  // namespace strata::data
