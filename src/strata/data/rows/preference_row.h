// A row of preferences, whatever its columns are called: a prompt, the better and the worse answer.
// Never renders, never tokenizes.
#pragma once

#include <string>

#include "strata/data/files/source.h"
#include "strata/data/rows/row_format.h"

namespace strata::data {

// Three texts (kPreferenceText) or three lists of messages with role and content
// (kPreferenceMessages).
struct Preference {
  Json prompt, chosen, rejected;
};

// The columns `chosen` and `rejected` are two texts or two lists of messages (one message may stand
// for its list); `prompt` is a text or a list, `conversations` a list, `instruction` Alpaca's
// question with `input`, `system` and `history`. Two texts with a prompt of text or none are texts,
// everything else is a conversation.
// Errors: FormatError with file and line; says what to do with rows that hold no preferences.
RowFormat detect_preference(const Row& row, const std::string& text_field);

// As the reference reads the row: without a prompt the beginning that both answers share is the
// prompt (its extract_prompt: one turn or one character at least stays in each answer, a space
// before the first difference belongs to the answers). A text as prompt or a question, beside lists
// that begin with the system or the user, are taken for a copy of what these lists begin with. A
// text beside messages is what the user (as prompt) or the assistant (as answer) says; a column
// `system` is the conversation's first message. The reference fails at both.
// Errors: FormatError with file and line.
Preference read_preference(const Row& row, const RowFormat& format);

// The same for documents that are read as a whole: a beginning that both share stays in them.
Preference read_whole_answers(const Row& row, const RowFormat& format);

// Whether the column has a part in what a row of this format becomes. The row need not be one.
bool is_used_in_preference(const std::string& column, const Row& row, const RowFormat& format);

}  // namespace strata::data
