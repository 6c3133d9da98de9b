// Conversations that stand in their column in another form than a list of messages.
#pragma once

#include <string>

#include "strata/data/files/source.h"

namespace strata::data {

// Makes a list of `messages` or `conversations` that a column holds as JSON text (tables can hold
// nothing else), or as lists side by side: {"role": [...], "content": [...]}, as `datasets` gives a
// Sequence of such objects; so of answers (`completion`, or `chosen` and `rejected`), which may be
// plain text, where the text is a list of messages indeed, and then of their `prompt`. Leaves the
// row as it is where it has a text of its own, and what is neither for those who read it.
void unfold_messages(Row& row, const std::string& text_field);

}  // namespace strata::data
