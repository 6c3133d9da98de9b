// What a message of a conversation says, whichever way it is written down. Never renders.
#pragma once

#include <string>
#include <string_view>

#include "strata/base/json.h"

namespace strata::data {

// The content, or the last of its parts that has a text.
std::string_view last_text(const Json& message);
// The same as a text that can be changed; null where the message has none.
std::string* find_last_text(Json& message);

// The text after the reasoning, without the blanks around it: what a template shows of a message
// however much of it it leaves out.
std::string_view answer_text(const Json& message);

// The name of a tool, or of a call of one; empty or null: it has none.
std::string_view function_name(const Json& call);
std::string* find_function_name(Json& call);

// The name of the last function that the message calls; empty: it calls none.
std::string_view last_call(const Json& message);
// The same to be changed; null: it calls none.
std::string* find_last_call(Json& message);

}  // namespace strata::data
