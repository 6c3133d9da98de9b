#include "strata/data/rows/rated_row.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <utility>

#include "strata/base/error.h"
#include "strata/data/files/column_advice.h"
#include "strata/data/rows/preference_row.h"

namespace strata::data {
namespace {

// What a label says, or nothing where it is none. Tables hold true and false as text (Excel's in
// capitals), and as 1.0 and 0.0 where another row of the column is empty.
std::optional<bool> desirable(const Json& label) {
  if (label.is_boolean()) return label.get<bool>();
  if (label.is_number() && (label == 0 || label == 1)) return label == 1;
  if (!label.is_string()) return std::nullopt;
  std::string text = label.get<std::string>();
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (text == "true" || text == "1" || text == "1.0") return true;
  if (text == "false" || text == "0" || text == "0.0") return false;
  return std::nullopt;
}

Rating read_rating(const Row& row) {
  const Json& label = *row.find("label");
  if (const auto is_desirable = desirable(label)) {
    return *is_desirable ? Rating::kDesirable : Rating::kUndesirable;
  }
  throw FormatError(
      "{}: found {} in \"label\", expected true or false (or 1 or 0); write true where the answer "
      "is desirable, and false where it is not",
      row.where(),
      label.is_primitive() ? label.dump(-1, ' ', /*ensure_ascii=*/true) : type_of(&label));
}

bool is_text_or_messages(const Json& value) { return value.is_string() || value.is_array(); }

Json messages_in(const Row& row, const std::string& column, const char* role) {
  const Json& value = *row.find(column);
  if (value.is_string()) return Json::array({Json{{"role", role}, {"content", value}}});
  return read_messages_of(row, column, value);
}

}  // namespace

RowFormat detect_rated(const Row& row, const std::string& text_field) {
  const Json* completion = row.find("completion");
  const Json* label = row.find("label");
  const bool has_preference = row.find("chosen") != nullptr && row.find("rejected") != nullptr;
  if (completion == nullptr && label == nullptr && has_preference) {
    return detect_preference(row, text_field);
  }
  const Json* prompt = row.find("prompt");
  if (prompt == nullptr || completion == nullptr || label == nullptr) {
    refuse_as_rated(row, text_field);
  }
  for (const auto& [name, value] : {std::pair("prompt", prompt), {"completion", completion}}) {
    if (is_text_or_messages(*value)) continue;
    throw FormatError("{}: found {} in \"{}\", expected a string or a list of messages",
                      row.where(), type_of(value), name);
  }
  const bool are_texts = prompt->is_string() && completion->is_string();
  return {.kind = are_texts ? RowKind::kRatedText : RowKind::kRatedMessages};
}

RatedAnswers read_rated(const Row& row, const RowFormat& format) {
  if (format.is_preference()) {
    Preference preference = read_preference(row, format);
    return {.prompt = std::move(preference.prompt),
            .answers = {std::move(preference.chosen), std::move(preference.rejected)}};
  }
  const Rating rating = read_rating(row);
  if (format.kind == RowKind::kRatedText) {
    return {.prompt = read_string(row, "prompt"),
            .answers = {read_string(row, "completion")},
            .rating = rating};
  }
  RatedAnswers result{.prompt = messages_in(row, "prompt", "user"),
                      .answers = {messages_in(row, "completion", "assistant")},
                      .rating = rating};
  add_system(row, result.prompt);
  return result;
}

}  // namespace strata::data
