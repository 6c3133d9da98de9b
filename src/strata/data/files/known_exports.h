// Formats of other programs whose rows are no examples here, and the command that rewrites them.
// Never reads files.
#pragma once

#include <string>

#include "strata/data/files/source.h"

namespace strata::data {

// Errors: FormatError for a row of such a format: Gemini's `contents`, OpenAI's pairs of
// `preferred_output` and `non_preferred_output`, `chat` as one text of glaive-function-calling.
void refuse_known_exports(const Row& row);

// Where a command that rewrites the file puts the rows: never over what it reads.
std::string rewritten_name(const std::string& file);

// A program of jq over the file's rows, whatever its form, as one would type it; its output goes to
// `to`.
std::string jq_command(const std::string& file, const std::string& program, const std::string& to);

// The same in Python for a column whose text is a list as Python prints it; nothing where the
// file's kind has another way to hold lists.
std::string literal_command(const std::string& file, const std::string& column);

}  // namespace strata::data
