// Conversations that teach no answer, or to end at once. Never decides what becomes of the row.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/base/json.h"

namespace strata::data {

// What a row may be: with an answer that has neither a text, reasoning nor a call; one in which
// nobody but user, system and tools speaks.
inline constexpr std::string_view kEmptyAnswer = "with an empty answer";
inline constexpr std::string_view kNoAnswer = "without an answer";

// Whether there is nothing to read.
bool is_blank(std::string_view text);

// Which of them the conversation is. Messages that are not learnt ("weight": 0) may be empty,
// unknown roles may be the assistant's.
std::vector<std::string> find_missing_answers(const Json& messages);

}  // namespace strata::data
