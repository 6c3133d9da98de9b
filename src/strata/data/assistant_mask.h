// Which part of a rendered conversation the assistant wrote, and which tokens stand for it. Never
// decides whether that mask is wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

using ByteSpan = std::pair<size_t, size_t>;  // [begin, end)

// A conversation as the template shows it, and the bytes the assistant wrote.
// With {% generation %} blocks: what they wrote. Without: message k of role "assistant" wrote what
// the rendering of messages[0..k] has beyond that of messages[0..k-1] with the generation prompt;
// so the end-of-turn text belongs to it, as in TRL's training templates.
// A template may leave the beginning of earlier answers out once more follow (Qwen3: reasoning).
// An answer with "weight": 0 or "train": false is not among the spans.
// Errors: ConfigError if those renderings are not prefixes of the whole one in any other way,
// FormatError from the template.
text::RenderedChat render_with_assistant_spans(const text::ChatTemplate& tmpl, const Json& messages,
                                               const text::Tokenizer::Specials& specials,
                                               const Json& extra);

// 1 for tokens from the first that covers a span's first character to the first that covers its
// last character. A border that no token covers (white space that the tokenizer's ranges leave out)
// moves inwards; the reference drops the later spans or trains all that follows there.
std::vector<uint8_t> mask_spans(std::span<const text::Token> tokens, const std::string& text,
                                std::span<const ByteSpan> spans);

}  // namespace strata::data
