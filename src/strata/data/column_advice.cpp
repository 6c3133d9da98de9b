#include "strata/data/column_advice.h"

#include <vector>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"

namespace strata::data {
namespace {

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
      "{}: found preference data (columns: {}), expected examples to imitate; train on the "
      "preferred answers with --dataset_columns {}=chosen",
      row.where(), column_names(row), column);
}

// "; did you mean --dataset_columns messages=mesages?"
std::string misspelt(const Row& row, const std::string& text_field) {
  const std::vector<std::string> known = {text_field,   "messages",    "conversations", "prompt",
                                          "completion", "instruction", "output"};
  for (const std::string& column : columns_of(row)) {
    const auto near = closest(column, known);
    if (near && row.find(*near) == nullptr) {
      return fmt::format("; did you mean --dataset_columns {}={}?", *near, column);
    }
  }
  return "";
}

}  // namespace

std::string column_names(const Row& row) {
  return fmt::format("{}", fmt::join(columns_of(row), ", "));
}

void refuse_columns(const Row& row, const std::string& text_field) {
  if (row.find("chosen") != nullptr && row.find("rejected") != nullptr) refuse_preferences(row);
  if (row.find("prompt") != nullptr) {
    throw FormatError(
        "{}: found a column \"prompt\" without \"completion\" (columns: {}), expected both; add "
        "the completion, name its column with --dataset_columns completion=COLUMN, or rename the "
        "column and pass --dataset_text_field{}",
        row.where(), column_names(row), misspelt(row, text_field));
  }
  throw FormatError(
      "{}: found columns [{}], expected \"{}\", \"messages\", \"prompt\" with \"completion\" or "
      "\"instruction\" with \"output\"; name them with --dataset_columns, or the text column with "
      "--dataset_text_field{}",
      row.where(), column_names(row), text_field, misspelt(row, text_field));
}

}  // namespace strata::data
