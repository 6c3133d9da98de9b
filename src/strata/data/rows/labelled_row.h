// A row of a text, or of a pair of texts, and what is to be told of it: its class, several labels,
// or a number. Never tokenizes, never looks at other rows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/data/files/source.h"
#include "strata/data/rows/row_format.h"

namespace strata::data {

// The names are those of the reference's run_classification.py.
struct LabelledOptions {
  // Joined; empty: the first of "sentence" and "text", or those of a pair that run_glue.py knows.
  std::vector<std::string> text_columns;
  std::vector<std::string> pair_columns = {};  // joined to the second text; empty: there is none
  std::string delimiter = " ";
  std::string label_column;         // empty: the first of "label" and "labels"
  std::optional<bool> are_numbers;  // nothing: where the first row's label has a fraction
  bool hides_labels = false;        // -1 says that a row has no label, as in GLUE's test sets
};

struct LabelledText {
  std::string text;
  std::optional<std::string> second;  // of a pair
  std::vector<std::string> labels;    // names: one of kClass, any of kLabels
  std::vector<float> numbers;         // one of kNumber
};

// Labels are texts, whole numbers or booleans, whose names are as Python prints them, or those that
// the row's file has for the numbers (Row::class_names); lists of such are several labels. Errors:
// FormatError with file and line; says what to do with rows that lack a text or a label.
RowFormat detect_labelled(const Row& row, const LabelledOptions& options);

// `format`: of the set's first row, which is at `first_row`. A text may stand for its number.
// Errors: FormatError with file and line.
LabelledText read_labelled(const Row& row, const RowFormat& format, const LabelledOptions& options,
                           const std::string& first_row);

// The names of classes that the row's file has for the numbers of the label's column; null: none,
// or the labels are no classes.
const std::vector<std::string>* class_names_in(const Row& row, const RowFormat& format);

}  // namespace strata::data
