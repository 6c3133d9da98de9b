#include "strata/data/rows/rated_row.h"

#include <utility>

#include "strata/base/error.h"
#include "strata/data/files/column_advice.h"
#include "strata/data/rows/preference_row.h"

namespace strata::data {
namespace {

Rating read_rating(const Row& row) {
  const Json& label = *row.find("label");
  const auto of = [](bool is_desirable) {
    return is_desirable ? Rating::kDesirable : Rating::kUndesirable;
  };
  if (label.is_boolean()) return of(label.get<bool>());
  if (label.is_number_integer() && (label == 0 || label == 1)) return of(label == 1);
  // As tables of text hold it.
  for (const auto& [text, is_desirable] : {std::pair("true", true),
                                           {"True", true},
                                           {"1", true},
                                           {"false", false},
                                           {"False", false},
                                           {"0", false}}) {
    if (label.is_string() && label == text) return of(is_desirable);
  }
  throw FormatError(
      "{}: found {} in \"label\", expected true or false (or 1 or 0)", row.where(),
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
