// A row of a text and what is to be told of it: its class, several labels, or a number. Never
// tokenizes, never looks at other rows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/data/files/source.h"
#include "strata/data/rows/row_format.h"

namespace strata::data {

// The names are those of the reference's run_classification.py.
struct LabelledOptions {
  std::vector<std::string> text_columns;  // joined; empty: the first of "sentence" and "text"
  std::string delimiter = " ";
  std::string label_column;         // empty: the first of "label" and "labels"
  std::optional<bool> are_numbers;  // nothing: where the first row's label has a fraction
};

struct LabelledText {
  std::string text;
  std::vector<std::string> labels;  // names: one of kClass, any of kLabels
  std::vector<float> numbers;       // one of kNumber
};

// Labels are texts, whole numbers or booleans, whose names are as Python prints them; lists of such
// are several labels. Errors: FormatError with file and line; says what to do with rows that lack a
// text or a label.
RowFormat detect_labelled(const Row& row, const LabelledOptions& options);

// `format`: of the set's first row, which is at `first_row`. A text may stand for its number.
// Errors: FormatError with file and line.
LabelledText read_labelled(const Row& row, const RowFormat& format, const std::string& delimiter,
                           const std::string& first_row);

}  // namespace strata::data
