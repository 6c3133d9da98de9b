// Formats of other programs whose rows are no examples here, and the command that rewrites them.
// Never reads files.
#pragma once

#include <string>

#include "strata/data/files/source.h"

namespace strata::data {

// Errors: FormatError for a row of such a format: Gemini's `contents`, OpenAI's pairs of
// `preferred_output` and `non_preferred_output`, `chat` as one text of glaive-function-calling.
void refuse_known_exports(const Row& row);

// A program that writes the file's rows through a filter of jq, as one would type it.
std::string jq_command(const std::string& file, const std::string& filter);

// The same for a column whose text is a list as Python prints it; nothing where the file's kind
// has another way to hold lists.
std::string literal_command(const std::string& file, const std::string& column);

}  // namespace strata::data
