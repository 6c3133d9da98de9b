// Errors for rows whose columns make no example: what is there, and how to name it otherwise. Never
// decides what a row is.
#pragma once

#include <string>

#include "strata/data/files/source.h"

namespace strata::data {

// The names of the columns with a value, with commas between.
std::string column_names(const Row& row);

// "; write them as messages, with jq: ..." for a column whose name says that it holds a
// conversation, and which holds it in another form: texts that take turns, or objects of a question
// and its answer. Empty for anything else.
std::string advise_messages(const std::string& column, const Json& list);

// FormatError with file and line that lists the columns. Preference data (chosen, rejected) and
// misspelt names are told how they can be trained on.
[[noreturn]] void refuse_columns(const Row& row, const std::string& text_field);

// The same where preferences are wanted. Examples to imitate are told which recipe is theirs.
[[noreturn]] void refuse_as_preference(const Row& row, const std::string& text_field);
// The same where rated answers are wanted.
[[noreturn]] void refuse_as_rated(const Row& row, const std::string& text_field);

// FormatError at `place` for an object of the file that is no row but holds lists of them, as in
// {"data": [...]} or {"train": [...], "test": [...]}; lists of messages are columns of a row.
void refuse_lists_of_rows(const Json& object, const std::string& place, const std::string& file);

}  // namespace strata::data
