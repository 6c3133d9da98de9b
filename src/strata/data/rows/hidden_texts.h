// What of a conversation its rendering lacks or shows as nobody means it: templates leave out roles
// that they do not know without a word, and print lists of parts. Never decides what becomes of the
// row.
#pragma once

#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

// What is hidden, a name for each message that has something hidden, in order: `texts of role
// "critic"`, `tool_calls of role "assistant"`, `tools`. `rendered`: the rendering of `messages`
// with `extra`. Reasoning before </think>, blanks around a text and a message without a text are
// not missed. Where every text is found in its order and none is a word of the template, that is
// all that is looked at; otherwise another rendering, in which every text bears a mark, tells which
// of them the template shows. A template that refuses the marks hides nothing.
std::vector<std::string> find_hidden_texts(const text::ChatTemplate& tmpl, const Json& messages,
                                           const text::Tokenizer::Specials& specials,
                                           const Json& extra, const std::string& rendered);

// What names of calls' arguments begin with, among those that find_printed_parts gives.
inline constexpr const char* kQuotedArguments = "arguments of ";

// Contents that are lists of parts, or objects, and that a template for texts wrote as Python shows
// them, `[{'type': 'text', ...`, and arguments of calls that are JSON text and that a template for
// objects quoted once more, `"{\"x\": 1}"`: a name for each, in order: `contents of role "user"`,
// `arguments of role "assistant"`.
std::vector<std::string> find_printed_parts(const Json& messages, const std::string& rendered);

}  // namespace strata::data
