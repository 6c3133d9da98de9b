#include "strata/data/rows/labelled_row.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <ranges>
#include <utility>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/data/files/column_advice.h"

namespace strata::data {
namespace {

std::string shown(const Json& value) {
  if (const auto digits = big_integer(value)) {
    constexpr size_t kMost = 40;
    return fmt::format("{}{}", digits->substr(0, kMost), digits->size() > kMost ? "..." : "");
  }
  return value.is_primitive() ? value.dump(-1, ' ', /*ensure_ascii=*/true) : type_of(&value);
}

// The first of the columns that the row has; empty: none.
std::string first_of(const Row& row, std::initializer_list<const char*> columns) {
  for (const char* column : columns) {
    if (row.find(column) != nullptr) return column;
  }
  return "";
}

constexpr size_t kNamedClasses = 10;

// Columns of GLUE's pairs, as run_glue.py knows them.
constexpr std::pair<const char*, const char*> kPairs[] = {{"sentence1", "sentence2"},
                                                          {"question1", "question2"},
                                                          {"premise", "hypothesis"},
                                                          {"question", "sentence"}};

// Those of one text, or of both.
void find_texts(const Row& row, const LabelledOptions& options, RowFormat& format) {
  format.text_columns = options.text_columns;
  format.pair_columns = options.pair_columns;
  if (!format.text_columns.empty()) return;
  if (format.pair_columns.empty()) {
    for (const auto& [first, second] : kPairs) {
      if (row.find(first) == nullptr || row.find(second) == nullptr) continue;
      format.text_columns = {first};
      format.pair_columns = {second};
      return;
    }
  }
  format.text_columns = {first_of(row, {"sentence", "text"})};
  if (!format.text_columns.front().empty()) return;
  throw FormatError(
      "{}: found no column \"sentence\" or \"text\" (columns: {}), expected a text to classify; "
      "name its column with --text_column_names",
      row.where(), column_names(row));
}

std::string label_column_of(const Row& row, const LabelledOptions& options) {
  if (!options.label_column.empty()) return options.label_column;
  const std::string column = first_of(row, {"label", "labels"});
  if (!column.empty()) return column;
  throw FormatError(
      "{}: found no label in \"label\" or \"labels\" (columns: {}), expected one; name its column "
      "with --label_column_name",
      row.where(), column_names(row));
}

// A number and nothing else, as far as fp32 holds it.
std::optional<float> number_in(const Json& value) {
  double number = 0;
  if (value.is_number()) {
    number = value.get<double>();
  } else if (const auto digits = big_integer(value)) {
    number = std::strtod(std::string(*digits).c_str(), nullptr);
  } else if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    char* end = nullptr;
    number = std::strtod(text.c_str(), &end);
    const bool is_whole = !text.empty() && end == text.c_str() + text.size();
    if (!is_whole || text.find_first_of("xXnN") != std::string::npos) return std::nullopt;
  } else {
    return std::nullopt;
  }
  const auto narrow = static_cast<float>(number);
  return std::isfinite(narrow) ? std::optional(narrow) : std::nullopt;
}

// A table holds numbers as text.
bool has_fraction(const Json& value) {
  if (value.is_number_float()) return true;
  return value.is_string() && number_in(value) &&
         value.get_ref<const std::string&>().find_first_of(".eE") != std::string::npos;
}

const std::vector<std::string>* names_in(const Row& row, const std::string& column) {
  if (!row.class_names) return nullptr;
  const auto found = row.class_names->find(column);
  return found == row.class_names->end() ? nullptr : &found->second;
}

const Json& label_in(const Row& row, const std::string& column) {
  if (const Json* label = row.find(column)) return *label;
  throw FormatError(
      "{}: found no label in \"{}\" (columns: {}), expected one in every row; add it, or leave "
      "such rows out with --on_bad_row skip",
      row.where(), column, column_names(row));
}

LabelKind kind_of(const Row& row, const std::string& column, const LabelledOptions& options) {
  const Json& label = label_in(row, column);
  if (options.are_numbers.value_or(false)) return LabelKind::kNumber;
  if (label.is_array()) return LabelKind::kLabels;
  if (names_in(row, column) != nullptr) return LabelKind::kClass;
  if (options.are_numbers || !has_fraction(label)) return LabelKind::kClass;
  if (!label.is_string()) return LabelKind::kNumber;
  throw FormatError(
      "{}: found {} as a label, which may be a number to predict or the name of a class, expected "
      "one or the other; add --do_regression true (a number) or false (a class)",
      row.where(), shown(label));
}

[[noreturn]] void refuse_hidden(const Row& row, const std::string& column) {
  throw FormatError(
      "{}: found -1 in \"{}\", which says that the row has no label (as in GLUE's test sets), "
      "expected one; use another split (--dataset_test_split validation), or leave such rows out "
      "with --on_bad_row skip",
      row.where(), column);
}

// The number of a class, also as a table or a truth value has it; nothing: the value is none.
std::optional<double> class_number(const Json& label) {
  if (label.is_boolean()) return label.get<bool>() ? 1 : 0;
  if (label.is_number()) return label.get<double>();
  if (!label.is_string()) return std::nullopt;
  const std::string& text = label.get_ref<const std::string&>();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional(static_cast<double>(number)) : std::nullopt;
}

// Of the classes that a data set names: as `datasets` reads them, a name or a number that stands
// for it.
const std::string& name_among(const std::vector<std::string>& names, const Row& row,
                              const std::string& column, const Json& label) {
  const auto named = std::ranges::find(names, label.is_string() ? label.get<std::string>() : "");
  if (label.is_string() && named != names.end()) return *named;
  const std::optional<double> number = class_number(label);
  if (number == -1) refuse_hidden(row, column);
  if (number && *number >= 0 && *number < static_cast<double>(names.size()) &&
      *number == std::floor(*number)) {
    return names[static_cast<size_t>(*number)];
  }
  throw FormatError(
      "{}: found {} in \"{}\", expected 0 to {} or one of the names that the data set has for "
      "these (\"{}\"{}); correct the label, or the names in the file or in README.md",
      row.where(), shown(label), column, names.size() - 1,
      fmt::join(names | std::views::take(kNamedClasses), "\", \""),
      names.size() > kNamedClasses ? ", ..." : "");
}

// As Python's str() writes it, but where the classes have names.
std::string name_of(const Row& row, const std::string& column, const Json& label, bool may_be_float,
                    const std::string& first_row) {
  if (const auto* names = names_in(row, column)) return name_among(*names, row, column, label);
  if (label.is_string()) return label.get<std::string>();
  if (label.is_boolean()) return label.get<bool>() ? "True" : "False";
  if (label.is_number_integer()) return label.dump();
  if (big_integer(label)) {
    throw FormatError(
        "{}: found {} in \"{}\", expected a label (a text, a whole number of at most 64 bits, true "
        "or false); write it in quotes",
        row.where(), shown(label), column);
  }
  if (label.is_number_float() && may_be_float) return python_float_repr(label.get<double>());
  throw FormatError(
      "{}: found {} in \"{}\", expected a label (a text, a whole number, true or false) as in {}{}",
      row.where(), shown(label), column, first_row,
      label.is_number_float() ? "; add --do_regression true where labels are numbers"
      : label.is_array()      ? "; write a list in every row where texts have several labels"
                              : "");
}

std::string joined_text(const Row& row, const std::vector<std::string>& columns,
                        const std::string& delimiter) {
  std::string text;
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string& column = columns[i];
    const Json* part = row.find(column);
    if (part == nullptr || !part->is_string()) {
      throw FormatError(
          "{}: found {} in \"{}\" (columns: {}), expected a text to classify; name the columns of "
          "texts with --text_column_names, those of a second one with --text_pair_column_names",
          row.where(), type_of(part), column, column_names(row));
    }
    if (i > 0) text += delimiter;
    text += part->get_ref<const std::string&>();
  }
  return text;
}

}  // namespace

RowFormat detect_labelled(const Row& row, const LabelledOptions& options) {
  RowFormat format{.kind = RowKind::kLabelled};
  find_texts(row, options, format);
  format.label_column = label_column_of(row, options);
  format.names_numbers = options.are_numbers.has_value();
  format.label = kind_of(row, format.label_column, options);
  return format;
}

const std::vector<std::string>* class_names_in(const Row& row, const RowFormat& format) {
  return format.label == LabelKind::kNumber ? nullptr : names_in(row, format.label_column);
}

LabelledText read_labelled(const Row& row, const RowFormat& format, const LabelledOptions& options,
                           const std::string& first_row) {
  LabelledText result;
  result.text = joined_text(row, format.text_columns, options.delimiter);
  if (!format.pair_columns.empty()) {
    result.second = joined_text(row, format.pair_columns, options.delimiter);
  }
  const std::string& column = format.label_column;
  const Json& label = label_in(row, column);
  if (options.hides_labels && (label == -1 || label == "-1" || label == "-1.0")) {
    refuse_hidden(row, column);
  }
  if (format.label == LabelKind::kNumber) {
    const auto number = number_in(label);
    if (!number) {
      throw FormatError("{}: found {} in \"{}\", expected a finite number as in {}", row.where(),
                        shown(label), column, first_row);
    }
    result.numbers = {*number};
    return result;
  }
  if (format.label == LabelKind::kClass) {
    result.labels = {name_of(row, column, label, format.names_numbers, first_row)};
    return result;
  }
  if (!label.is_array()) {
    throw FormatError("{}: found {} in \"{}\", expected a list of labels as in {}", row.where(),
                      shown(label), column, first_row);
  }
  for (const Json& one : label) {
    std::string name = name_of(row, column, one, /*may_be_float=*/false, first_row);
    if (std::ranges::find(result.labels, name) == result.labels.end()) {
      result.labels.push_back(std::move(name));
    }
  }
  return result;
}

}  // namespace strata::data
