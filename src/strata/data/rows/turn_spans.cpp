#include "strata/data/rows/turn_spans.h"

#include <algorithm>
#include <string_view>

#include "strata/base/error.h"
#include "strata/data/rows/message_text.h"
#include "strata/data/rows/missing_answers.h"

namespace strata::data {
namespace {

constexpr std::string_view kProbe = "\xee\x80\x80";  // U+E000, which no text means

size_t common_prefix(std::string_view a, std::string_view b) {
  const size_t size = std::min(a.size(), b.size());
  size_t at = static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(size), b.begin()).first -
      a.begin());
  const auto is_inside = [](std::string_view text, size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xc0u) == 0x80u;
  };
  while (at > 0 && (is_inside(a, at) || is_inside(b, at))) --at;  // no half characters
  return at;
}

// What a message's text has up to the end of its reasoning.
std::string_view leading_thoughts(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return "";
  const std::string_view text = content->get_ref<const std::string&>();
  const size_t end = text.rfind("</think>");
  return end == std::string_view::npos ? "" : text.substr(0, end + 8);
}

// The message with a probe before its text, after its reasoning, or after all of it.
bool add_probe(bool at_end, Json& message) {
  Json& content = message["content"];
  if (content.is_null()) content = "";
  if (content.is_string()) {
    auto& text = content.get_ref<std::string&>();
    const size_t reasoning = at_end ? std::string::npos : text.rfind("</think>");
    const size_t begin = reasoning == std::string::npos ? 0 : reasoning + 8;
    text.insert(at_end ? text.size() : begin, kProbe);
    return true;
  }
  if (!content.is_array()) return false;
  content.insert(at_end ? content.end() : content.begin(),
                 Json{{"type", "text"}, {"text", kProbe}});
  return true;
}

// The message with a probe before the name of its first call, or after that of its last.
bool add_probe_to_calls(bool at_end, Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array() || calls->empty()) return false;
  Json& call = at_end ? calls->back() : calls->front();
  const auto function = call.find("function");
  Json& named = function == call.end() ? call : *function;
  const auto name = named.find("name");
  if (name == named.end() || !name->is_string()) return false;
  auto& text = name->get_ref<std::string&>();
  text.insert(at_end ? text.size() : 0, kProbe);
  return true;
}

// "<|end|>" at the beginning of a text: its size, 0 if there is none.
size_t leading_mark(std::string_view text) {
  if (!text.starts_with("<|")) return 0;
  const size_t end = text.find("|>", 2);
  return end == std::string_view::npos ? 0 : end + 2;
}

// "<|end|>\n".
bool ends_with_mark(std::string_view text) {
  const size_t last = text.find_last_not_of(" \n\t");
  return last != std::string_view::npos && text.substr(0, last + 1).ends_with("|>");
}

// What must be seen of an answer, however much of it is left out: its last call, or its text after
// the reasoning. `turn`: what a template makes of it, which may show no calls (Phi-3).
std::string_view essence(const Json& message, std::string_view turn) {
  const std::string_view call = last_call(message);
  return turn.find(call) == std::string_view::npos || call.empty() ? answer_text(message) : call;
}

// Where the answer that begins at `begin` ends, for a template that leaves the beginning of earlier
// answers out. Qwen3 leaves their reasoning out: `turn`, the answer as it looks when it is the last
// message, then begins with text that the whole conversation lacks. Nothing if it differs in
// another way.
std::optional<size_t> find_end_of_shortened(const std::string& text, size_t begin,
                                            std::string_view turn, const Json& message) {
  const std::string_view rest = std::string_view(text).substr(begin);
  for (size_t cut = 0; cut < turn.size(); ++cut) {
    const std::string_view shortened = turn.substr(cut);
    if (!rest.starts_with(shortened)) continue;
    const std::string_view seen = essence(message, turn);
    // Of an answer without a text its end must be seen: any blank is a part of it.
    const bool may_be_mark = last_call(message).empty() && ends_with_mark(shortened);
    const bool is_seen =
        seen.empty() ? cut == 0 || may_be_mark : shortened.find(seen) != std::string_view::npos;
    if (!is_seen) return std::nullopt;
    return begin + shortened.size();
  }
  return std::nullopt;
}

}  // namespace

bool is_assistant(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && *role == "assistant";
}

TurnSpans::TurnSpans(const text::ChatTemplate& tmpl, const Json& messages,
                     const text::Tokenizer::Specials& specials, const Json& extra)
    : template_(tmpl),
      messages_(messages),
      specials_(specials),
      extra_(extra),
      chat_(tmpl.render(messages, specials, /*add_generation_prompt=*/false, extra)) {}

std::string TurnSpans::render(const Json& messages, bool generation_prompt) const {
  return template_.render(messages, specials_, generation_prompt, extra_).text;
}

Json TurnSpans::prefix(size_t count) const {
  Json messages = Json::array();
  for (size_t i = 0; i < count; ++i) messages.push_back(messages_[i]);
  return messages;
}

std::string TurnSpans::render_prefix(size_t count, bool generation_prompt) const {
  try {
    return render(prefix(count), generation_prompt);
  } catch (const FormatError& error) {
    // Mostly the row's fault, such as a conversation that the assistant begins: it can be skipped.
    throw FormatError(
        "found a conversation whose first {} messages the chat template refuses ({}), expected one "
        "that the user begins; correct the row, leave it out with --on_bad_row skip, or pass a "
        "template with {{% generation %}} blocks",
        count, error.what());
  }
}

ByteSpan TurnSpans::find(size_t message) const {
  if (!is_assistant(messages_[message])) return find_other(message);
  if (const auto found = find_answer(message)) return *found;
  if (!is_shown(message)) return {0, 0};
  if (message == 0) {
    throw FormatError(
        "found a conversation that the assistant begins, whose first answer cannot be told from "
        "what the chat template writes itself, expected one that the user begins; correct the row, "
        "leave it out with --on_bad_row skip, or pass a template with {{% generation %}} blocks");
  }
  throw FormatError(
      "found a chat template that shows answers of earlier turns otherwise when more follow "
      "(message {}), expected one in which each can be found; put {{% generation %}} and "
      "{{% endgeneration %}} around what the assistant writes and pass it with "
      "--chat_template_path",
      message + 1);
}

std::optional<ByteSpan> TurnSpans::find_answer(size_t k) const {
  const auto is_question = [](const Json& message) {
    const auto role = message.find("role");
    return role != message.end() && *role == "user";
  };
  const auto end = messages_.begin() + static_cast<std::ptrdiff_t>(k);
  if (std::find_if(messages_.begin(), end, is_question) == end) {
    const auto found = find_opening(k);
    if (found || k == 0) return found;
  }
  const std::string before = render_prefix(k, /*generation_prompt=*/true);
  if (const auto found = find_appended(k, before)) return found;
  return find_answer_by_content(k, before);
}

// An answer that nobody asked for (many conversations begin so): what is taken for it if a question
// stands before it, at the place of its content here.
std::optional<ByteSpan> TurnSpans::find_opening(size_t k) const {
  Json content = "?";
  const auto own = messages_[k].find("content");
  if (own != messages_[k].end() && own->is_array()) {
    content = Json::array({Json{{"type", "text"}, {"text", "?"}}});
  }
  Json asked = messages_;
  asked.insert(asked.begin() + static_cast<std::ptrdiff_t>(k),
               Json{{"role", "user"}, {"content", std::move(content)}});
  try {
    const TurnSpans turns(template_, asked, specials_, extra_);
    const auto [begin, end] = turns.find(k + 1);
    const auto there = turns.content_border(asked, k + 1, turns.chat_.text, false, false);
    const auto here = content_border(messages_, k, chat_.text, false, false);
    if (!there || !here || *there < begin || *here < *there - begin) return std::nullopt;
    const size_t first = *here - (*there - begin);
    const std::string_view answer = std::string_view(turns.chat_.text).substr(begin, end - begin);
    if (!std::string_view(chat_.text).substr(first).starts_with(answer)) return std::nullopt;
    return ByteSpan{first, first + answer.size()};
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

// Whether the conversation would look otherwise without the message.
bool TurnSpans::is_shown(size_t k) const {
  Json others = messages_;
  others.erase(k);
  try {
    return render(others, /*generation_prompt=*/false) != chat_.text;
  } catch (const FormatError&) {
    return true;
  }
}

// Of a template that only appends, except for the reasoning of earlier answers.
std::optional<ByteSpan> TurnSpans::find_appended(size_t k, const std::string& before) const {
  const std::string& text = chat_.text;
  if (!text.starts_with(before)) return std::nullopt;
  const size_t begin = before.size();
  if (k + 1 == messages_.size()) return ByteSpan{begin, text.size()};
  const std::string after = render_prefix(k + 1, /*generation_prompt=*/false);
  if (!after.starts_with(before)) return std::nullopt;
  if (text.starts_with(after)) return ByteSpan{begin, after.size()};
  std::string_view turn = std::string_view(after).substr(begin);
  auto end = find_end_of_shortened(text, begin, turn, messages_[k]);
  // Phi-3 ends the whole conversation, not each answer, with the end token.
  const std::string eos = specials_.eos.value_or("");
  if (!end && !eos.empty() && turn.ends_with(eos)) {
    turn.remove_suffix(eos.size());
    end = find_end_of_shortened(text, begin, turn, messages_[k]);
    // gpt-oss ends the last answer with it, and earlier ones with a mark of their own.
    if (end && !ends_with_mark(turn) && leading_mark(std::string_view(text).substr(*end)) > 0) {
      return std::nullopt;
    }
  }
  if (!end) return std::nullopt;
  return ByteSpan{begin, *end};
}

// Where the content of message k begins or ends in `rendering`, the rendering of `messages`: where
// a probe at that place first changes it. Many templates show no content beside calls: there the
// name of a call stands for it.
std::optional<size_t> TurnSpans::content_border(const Json& messages, size_t k,
                                                const std::string& rendering,
                                                bool generation_prompt, bool at_end) const {
  for (const auto add : {add_probe, add_probe_to_calls}) {
    Json changed = messages;
    if (!add(at_end, changed[k])) continue;
    try {
      const std::string probed = render(changed, generation_prompt);
      if (probed != rendering) return common_prefix(probed, rendering);
    } catch (const FormatError&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<ByteSpan> TurnSpans::find_answer_by_content(size_t k,
                                                          const std::string& before) const {
  const std::string_view text = chat_.text;
  size_t from = 0, before_from = 0;
  if (k > 0) {
    const auto here = content_border(messages_, k - 1, chat_.text, false, /*at_end=*/true);
    const auto there = content_border(prefix(k), k - 1, before, true, /*at_end=*/true);
    if (!here || !there) return std::nullopt;
    from = *here;
    before_from = *there;
  }
  const auto content = content_border(messages_, k, chat_.text, false, /*at_end=*/false);
  if (!content || *content < from) return std::nullopt;
  // Between the neighbours' contents: what the prompt of an answer writes, and what stands here.
  const std::string_view prompt = std::string_view(before).substr(before_from);
  const std::string_view header = text.substr(from, *content - from);
  const size_t common = common_prefix(prompt, header);
  const std::string without = render_prefix(k, /*generation_prompt=*/false);
  const size_t generation = before.starts_with(without) ? before.size() - without.size() : 0;
  const bool is_role_seen = common + generation > prompt.size();
  const bool is_prompt_whole = common == header.size() || common == prompt.size() || is_role_seen;
  // What stands before the prompt may look otherwise when more follows (Hermes' answers of tools).
  const auto behind_prompt =
      generation <= prompt.size()
          ? end_of_prompt(k, header, prompt.substr(prompt.size() - generation))
          : std::nullopt;
  if (!is_prompt_whole && !behind_prompt) return std::nullopt;
  const size_t begin = from + (is_prompt_whole ? common : *behind_prompt);
  const auto end = k + 1 == messages_.size() ? text.size() : answer_end_by_content(k);
  if (!end || *end < begin) return std::nullopt;
  return ByteSpan{begin, *end};
}

// Where in `header`, what stands between the contents of the message before and of answer k, the
// answer begins: after the generation prompt. What follows that there is reasoning, or what the
// template writes before a content or the name of a call: then nothing of another message is in
// it, as without the messages after it looks the same.
std::optional<size_t> TurnSpans::end_of_prompt(size_t k, std::string_view header,
                                               std::string_view generation) const {
  const std::string_view thoughts = leading_thoughts(messages_[k]);
  if (generation.empty()) return std::nullopt;
  std::string_view before = header;
  if (before.ends_with(thoughts)) before.remove_suffix(thoughts.size());
  if (before.ends_with(generation)) return before.size();
  const size_t found = before.rfind(generation);
  if (found == std::string_view::npos || k == 0 || is_blank(generation)) return std::nullopt;
  const Json turns = prefix(k + 1);
  const std::string alone = render_prefix(k + 1, /*generation_prompt=*/false);
  const auto begin = content_border(turns, k - 1, alone, false, /*at_end=*/true);
  const auto end = content_border(turns, k, alone, false, /*at_end=*/false);
  if (!begin || !end || *end < *begin) return std::nullopt;
  if (std::string_view(alone).substr(*begin, *end - *begin) != header) return std::nullopt;
  return found + generation.size();
}

// What follows the answer's content when it is the last message follows it here too.
std::optional<size_t> TurnSpans::answer_end_by_content(size_t k) const {
  const std::string after = render_prefix(k + 1, /*generation_prompt=*/false);
  const auto here = content_border(messages_, k, chat_.text, false, /*at_end=*/true);
  const auto there = content_border(prefix(k + 1), k, after, false, /*at_end=*/true);
  if (!here || !there) return std::nullopt;
  const std::string_view rest = std::string_view(chat_.text).substr(*here);
  std::string_view tail = std::string_view(after).substr(*there);
  if (rest.starts_with(tail)) return *here + tail.size();
  const std::string eos = specials_.eos.value_or("");
  if (!eos.empty() && tail.size() > eos.size() && tail.ends_with(eos)) {
    tail.remove_suffix(eos.size());
    if (rest.starts_with(tail)) return *here + tail.size();
  }
  // The last answer ends with another mark than earlier ones (gpt-oss).
  const bool is_mark = leading_mark(tail) == tail.size() || tail == eos;
  if (tail.empty() || !is_mark || leading_mark(rest) == 0) return std::nullopt;
  return *here + leading_mark(rest);
}

ByteSpan TurnSpans::find_other(size_t k) const {
  if (!is_shown(k)) return {0, 0};
  const std::string& text = chat_.text;
  try {
    const std::string before = k == 0 ? "" : render(prefix(k), /*generation_prompt=*/false);
    const std::string after =
        k + 1 == messages_.size() ? text : render(prefix(k + 1), /*generation_prompt=*/false);
    if (text.starts_with(after) && after.starts_with(before)) return {before.size(), after.size()};
  } catch (const FormatError&) {  // a template may refuse a system message alone
  }
  const auto begin = content_border(messages_, k, text, false, /*at_end=*/false);
  const auto end = content_border(messages_, k, text, false, /*at_end=*/true);
  if (begin && end && *begin <= *end) return {*begin, *end};
  throw FormatError(
      "found a chat template in whose rendering message {}, which asks by \"weight\" or \"train\" "
      "whether it is learnt, cannot be found, expected its text there; remove that from the "
      "message",
      k + 1);
}

}  // namespace strata::data
