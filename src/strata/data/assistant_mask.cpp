#include "strata/data/assistant_mask.h"

#include <algorithm>
#include <string_view>
#include <vector>

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

// Whether a message of the assistant asks not to be learnt: "weight": 0 (as in OpenAI's files) or
// "train": false.
bool is_trained(const Json& message) {
  const auto weight = message.find("weight");
  if (weight != message.end() && weight->is_number() && weight->get<double>() == 0) return false;
  const auto train = message.find("train");
  return train == message.end() || *train != Json(false);
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
    // Mostly the row's fault, such as a conversation that the assistant begins: it can be skipped.
    throw FormatError(
        "assistant_only_loss: found a conversation whose first {} messages the chat template "
        "refuses ({}), expected one that the user begins; mend the row, leave it out with "
        "--on_bad_row skip, or pass a template with {{% generation %}} blocks",
        count, error.what());
  }
}

// With one block for each answer, the blocks of those that ask not to be learnt go.
void drop_untrained(const Json& messages, text::RenderedChat& chat) {
  std::vector<bool> trained;
  for (const Json& message : messages) {
    if (is_assistant(message)) trained.push_back(is_trained(message));
  }
  if (std::find(trained.begin(), trained.end(), false) == trained.end()) return;
  if (trained.size() != chat.generation.size()) {
    throw ConfigError(
        "assistant_only_loss: found {} {{% generation %}} blocks for {} answers, some of which are "
        "not to be trained, expected one block for each; use a template without these blocks",
        chat.generation.size(), trained.size());
  }
  size_t i = 0;
  std::erase_if(chat.generation, [&](const auto&) { return !trained[i++]; });
}

// Where the answer that begins at `begin` ends, for a template that shows earlier answers otherwise
// once more follow. Qwen3 leaves their reasoning out: `turn`, the answer as it looks when it is the
// last message, then begins with text that the whole conversation lacks. npos if it differs in
// another way.
size_t find_end_of_shortened(const std::string& text, size_t begin, std::string_view turn,
                             const Json& message) {
  std::string_view answer;
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) {
    answer = content->get_ref<const std::string&>();
    const size_t reasoning = answer.rfind("</think>");
    if (reasoning != std::string_view::npos) answer.remove_prefix(reasoning + 8);
    const size_t first = answer.find_first_not_of(" \n\t");
    answer = first == std::string_view::npos ? "" : answer.substr(first);
    answer = answer.substr(0, answer.find_last_not_of(" \n\t") + 1);
  }
  const std::string_view rest = std::string_view(text).substr(begin);
  for (size_t cut = 0; cut < turn.size(); ++cut) {
    const std::string_view shortened = turn.substr(cut);
    if (!rest.starts_with(shortened)) continue;
    return shortened.find(answer) == std::string_view::npos ? std::string::npos
                                                            : begin + shortened.size();
  }
  return std::string::npos;
}

}  // namespace

text::RenderedChat render_with_assistant_spans(const text::ChatTemplate& tmpl, const Json& messages,
                                               const text::Tokenizer::Specials& specials,
                                               const Json& extra) {
  text::RenderedChat chat = tmpl.render(messages, specials, /*add_generation_prompt=*/false, extra);
  if (tmpl.has_generation_blocks()) {
    drop_untrained(messages, chat);
    return chat;
  }
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
      end = after.size();
      if (!after.starts_with(before)) end = std::string::npos;
      if (end != std::string::npos && !chat.text.starts_with(after)) {
        std::string_view turn = std::string_view(after).substr(before.size());
        end = find_end_of_shortened(chat.text, before.size(), turn, messages[k]);
        // Phi-3 ends the whole conversation, not each answer, with the end token.
        const std::string eos = specials.eos.value_or("");
        if (end == std::string::npos && !eos.empty() && turn.ends_with(eos)) {
          turn.remove_suffix(eos.size());
          end = find_end_of_shortened(chat.text, before.size(), turn, messages[k]);
        }
      }
      if (end == std::string::npos) {
        refuse_template(k, "shows earlier turns otherwise when more follow");
      }
    }
    if (end > before.size() && is_trained(messages[k])) {
      chat.generation.emplace_back(before.size(), end);
    }
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
