#include "strata/data/assistant_mask.h"

#include <string_view>

#include "strata/base/error.h"

namespace strata::data {
namespace {

[[noreturn]] void refuse_template(size_t message, const std::string& cause) {
  throw ConfigError(
      "assistant_only_loss: found a chat template that {} (message {}), expected one that only "
      "appends; put {{% generation %}} and {{% endgeneration %}} around what the assistant writes "
      "and pass it with --chat_template_path",
      cause, message + 1);
}

bool is_assistant(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && *role == "assistant";
}

// The rendering of the messages before `count` (plus the generation prompt): where an answer
// begins.
std::string render_prefix(const text::ChatTemplate& tmpl, const Json& messages, size_t count,
                          const text::Tokenizer::Specials& specials, bool generation_prompt,
                          const Json& extra) {
  Json prefix = Json::array();
  for (size_t i = 0; i < count; ++i) prefix.push_back(messages[i]);
  try {
    return tmpl.render(prefix, specials, generation_prompt, extra).text;
  } catch (const FormatError& error) {
    refuse_template(count,
                    std::string("fails on the first part of a conversation: ") + error.what());
  }
}

}  // namespace

text::RenderedChat render_with_assistant_spans(const text::ChatTemplate& tmpl, const Json& messages,
                                               const text::Tokenizer::Specials& specials,
                                               const Json& extra) {
  text::RenderedChat chat = tmpl.render(messages, specials, /*add_generation_prompt=*/false, extra);
  if (tmpl.has_generation_blocks()) return chat;
  chat.generation.clear();
  for (size_t k = 0; k < messages.size(); ++k) {
    if (!is_assistant(messages[k])) continue;
    const std::string before =
        render_prefix(tmpl, messages, k, specials, /*generation_prompt=*/true, extra);
    if (!chat.text.starts_with(before)) {
      refuse_template(k, "shows the start of an answer otherwise than its generation prompt");
    }
    size_t end = chat.text.size();
    if (k + 1 < messages.size()) {
      const std::string after =
          render_prefix(tmpl, messages, k + 1, specials, /*generation_prompt=*/false, extra);
      if (!chat.text.starts_with(after) || after.size() < before.size()) {
        refuse_template(k, "shows earlier turns otherwise when more follow");
      }
      end = after.size();
    }
    if (end > before.size()) chat.generation.emplace_back(before.size(), end);
  }
  return chat;
}

std::vector<uint8_t> mask_spans(std::span<const text::Token> tokens, const std::string& text,
                                std::span<const ByteSpan> spans) {
  std::vector<uint8_t> mask(tokens.size(), 0);
  const auto is_continuation = [&text](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u;
  };
  size_t first = 0;  // spans and tokens both run forward
  for (const auto& [begin, end] : spans) {
    if (begin >= end) continue;
    size_t last_character = end - 1;
    while (last_character > begin && is_continuation(last_character)) --last_character;
    while (first < tokens.size() && tokens[first].end <= begin) ++first;
    for (size_t t = first; t < tokens.size() && tokens[t].begin < end; ++t) {
      mask[t] = 1;
      if (tokens[t].begin <= last_character && last_character < tokens[t].end) break;
    }
  }
  return mask;
}

}  // namespace strata::data
