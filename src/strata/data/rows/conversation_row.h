// A row as one conversation, whatever its columns are called, and what a chat template sees beside
// it. Never renders.
#pragma once

#include "strata/data/files/source.h"

namespace strata::data {

// Whether `fields` are an object with a conversation: messages, ShareGPT, Alpaca, or lists of
// messages as prompt and completion.
bool is_conversation(const Json& fields);

// All its messages, the completion's too. Requires: is_conversation(). Errors: FormatError with
// file and line.
Json read_whole_conversation(const Row& row);

// The variables of the template that the row gives: tools (a list, or its JSON text) and its own
// chat_template_kwargs. Errors: FormatError with file and line.
Json template_variables(const Row& row);

}  // namespace strata::data
