// Which part of a rendered conversation is trained, and which tokens stand for it. Never
// decides whether that mask is wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/data/rows/turn_spans.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

// Whether a message itself says that it is learnt or not: "weight": 1 or 0 (as in OpenAI's files),
// "train": true or false. Nothing: it does not say.
// Errors: FormatError for other values.
std::optional<bool> wish_of(const Json& message);

// Whether a message of the conversation says that it is not learnt. Errors: as wish_of, with the
// message's number.
bool has_untrained(const Json& messages);

struct MarkedChat {
  std::string text;             // the conversation as the template shows it
  std::vector<ByteSpan> spans;  // in order
};

// The bytes that are learnt where only the assistant is: its answers, except for those that say no,
// and other messages that say yes. With {% generation %} blocks an answer is what they wrote;
// without, see turn_spans.h. Of a message that the template does not show there is nothing to learn
// or to leave out. Errors: FormatError from the template, for a message that cannot be found, and
// for wishes.
MarkedChat render_with_assistant_spans(const text::ChatTemplate& tmpl, const Json& messages,
                                       const text::Tokenizer::Specials& specials,
                                       const Json& extra);

// The bytes that are not learnt where everything else is: messages that say no, answers of the
// assistant without the mark of its role. Errors: as above.
MarkedChat render_with_untrained_spans(const text::ChatTemplate& tmpl, const Json& messages,
                                       const text::Tokenizer::Specials& specials,
                                       const Json& extra);

// 1 for tokens from the first that covers a span's first character to the first that covers its
// last character. A border that no token covers (white space that the tokenizer's ranges leave out)
// moves inwards; the reference drops the later spans or trains all that follows there.
std::vector<uint8_t> mask_spans(std::span<const text::Token> tokens, const std::string& text,
                                std::span<const ByteSpan> spans);

}  // namespace strata::data
