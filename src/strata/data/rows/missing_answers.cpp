#include "strata/data/rows/missing_answers.h"

#include <algorithm>
#include <array>

#include "strata/data/rows/assistant_mask.h"
#include "strata/data/rows/message_text.h"

namespace strata::data {
namespace {

std::string role_of(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && role->is_string() ? role->get<std::string>() : "";
}

// What templates show of a message beside its content.
bool has_more(const Json& message) {
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    const auto found = message.find(key);
    if (found != message.end() && found->is_string() && !is_blank(found->get<std::string>())) {
      return true;
    }
  }
  return !last_call(message).empty();
}

bool never_answers(const std::string& role) {
  constexpr std::array<std::string_view, 5> kOthers = {"user", "system", "developer", "tool",
                                                       "function"};
  return std::ranges::find(kOthers, role) != kOthers.end();
}

}  // namespace

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::vector<std::string> find_missing_answers(const Json& messages) {
  std::vector<std::string> names;
  bool has_answer = false, has_empty_answer = false;
  for (const Json& message : messages) {
    const std::string role = role_of(message);
    has_answer |= !never_answers(role);
    if (role != "assistant" || !wish_of(message).value_or(true)) continue;
    has_empty_answer |= is_blank(last_text(message)) && !has_more(message);
  }
  if (has_empty_answer) names.emplace_back(kEmptyAnswer);
  if (!messages.empty() && !has_answer) names.emplace_back(kNoAnswer);
  return names;
}

}  // namespace strata::data
