// Where each message of a conversation stands in its rendering. Never decides what is trained.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "strata/base/json.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

using ByteSpan = std::pair<size_t, size_t>;  // [begin, end)

bool is_assistant(const Json& message);

// Finds messages by rendering the conversation's prefixes. Message k of role "assistant" wrote what
// the rendering of messages[0..k] has beyond that of messages[0..k-1] with the generation prompt,
// so that the end-of-turn text belongs to it, as in TRL's training templates. Any other message
// wrote what it adds without generation prompts. A template need not only append: reasoning of
// earlier answers may be left out (Qwen3), the generation prompt may hold an empty or an opened
// reasoning block that earlier answers lack (enable_thinking false), tools may stand before the
// last question. The message is then found by the place of its content, which a changed rendering
// shows, and by what stands between it and the content of its neighbours in both renderings. An
// answer before the first question is what it would be after one. Keeps references to all
// arguments.
class TurnSpans {
 public:
  // Errors: FormatError from the template.
  TurnSpans(const text::ChatTemplate& tmpl, const Json& messages,
            const text::Tokenizer::Specials& specials, const Json& extra);

  // The whole conversation.
  const text::RenderedChat& chat() const { return chat_; }
  // Empty for a message that the template does not show. Errors: FormatError if the template
  // refuses the messages before, or shows the message in a way in which it cannot be found.
  ByteSpan find(size_t message) const;

 private:
  std::string render(const Json& messages, bool generation_prompt) const;
  std::string render_prefix(size_t count, bool generation_prompt) const;
  Json prefix(size_t count) const;
  std::optional<ByteSpan> find_answer(size_t k) const;
  std::optional<ByteSpan> find_opening(size_t k) const;
  bool is_shown(size_t k) const;
  std::optional<ByteSpan> find_appended(size_t k, const std::string& before) const;
  std::optional<ByteSpan> find_answer_by_content(size_t k, const std::string& before) const;
  std::optional<size_t> end_of_prompt(size_t k, std::string_view header,
                                      std::string_view generation) const;
  std::optional<size_t> answer_end_by_content(size_t k) const;
  ByteSpan find_other(size_t k) const;
  std::optional<size_t> content_border(const Json& messages, size_t k, const std::string& rendering,
                                       bool generation_prompt, bool at_end) const;

  const text::ChatTemplate& template_;
  const Json& messages_;
  const text::Tokenizer::Specials& specials_;
  const Json& extra_;
  text::RenderedChat chat_;
};

}  // namespace strata::data
