// A row of a prompt, an answer and what somebody thought of it, or of preferences in its place.
// Never renders, never tokenizes.
#pragma once

#include <vector>

#include "strata/data/batch.h"
#include "strata/data/files/source.h"
#include "strata/data/rows/row_format.h"

namespace strata::data {

// A text each (kRatedText, kPreferenceText), or lists of messages with role and content.
struct RatedAnswers {
  Json prompt;
  std::vector<Json> answers;      // one, or the better and the worse of two
  Rating rating = Rating::kNone;  // of one
};

// Rows have the columns `prompt`, `completion` and `label`; two texts are texts, everything else is
// a conversation. Rows without `label` and `completion` are preferences (preference_row.h), which
// the reference takes apart (its unpair_preference_dataset).
// Errors: FormatError with file and line; says what to do with rows that are neither.
RowFormat detect_rated(const Row& row, const std::string& text_field);

// A text beside messages is what the user (as prompt) or the assistant (as completion) says; a
// column `system` is the conversation's first message. The reference fails at both. `label`: true
// or false, or 1 or 0, or one of these as text (True and False, too).
// Errors: FormatError with file and line.
RatedAnswers read_rated(const Row& row, const RowFormat& format);

}  // namespace strata::data
