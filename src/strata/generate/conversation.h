// Turns of a conversation in, answers out, as text. Owns: the messages so far and how they become
// ids. Never: reading or printing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/base/json.h"
#include "strata/generate/generate.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::generate {

// Called with each new piece of an answer (whole UTF-8 characters, may be empty); false stops.
using OnText = std::function<bool(std::string_view piece)>;

// With a chat template every turn is a user message. Without one the model continues plain text:
// each turn is put after all that was said before.
class Conversation {
 public:
  // An empty `system` means none. Both references must outlive the conversation. ConfigError for a
  // system message without a chat template.
  Conversation(LoadedModel& model, const text::Tokenizer& tokenizer, std::string system);

  bool has_template() const { return template_.has_value(); }

  // Answers one turn; an answer that was stopped counts as said. After an error, or a stop before
  // the first token, the conversation is as it was before. Errors: those of the template and of
  // Generator::generate().
  StopReason answer(const std::string& prompt, const GenerateOptions& options, Sampler& sampler,
                    const OnText& on_text);

  // Back to the system message.
  void reset();

 private:
  std::vector<int32_t> prompt_ids(const std::string& prompt) const;
  void remember(const std::string& prompt, std::vector<int32_t> prompt_ids,
                const Continuation& answer);

  const text::Tokenizer& tokenizer_;
  Generator generator_;
  std::string system_;
  std::optional<text::ChatTemplate> template_;
  Json messages_ = Json::array();  // with a template
  std::vector<int32_t> ids_;       // without one
};

}  // namespace strata::generate
