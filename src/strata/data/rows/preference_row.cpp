#include "strata/data/rows/preference_row.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "strata/base/error.h"
#include "strata/data/files/column_advice.h"

namespace strata::data {
namespace {

// Where the prompt of a row stands.
enum class PromptSource { kAnswers, kPrompt, kConversations, kInstruction };

bool holds_messages(const Json& value) { return value.is_array() || value.is_object(); }

// Whether an answer begins with what somebody else than the assistant says.
bool begins_with_question(const Json* answer) {
  if (answer == nullptr || !answer->is_array() || answer->empty()) return false;
  const Json& first = answer->front();
  if (!first.is_object()) return false;
  for (const char* key : {"role", "from"}) {
    const auto role = first.find(key);
    if (role == first.end()) continue;
    constexpr std::array<std::string_view, 4> kAsking = {"system", "developer", "user", "human"};
    return role->is_string() &&
           std::ranges::find(kAsking, role->get_ref<const std::string&>()) != kAsking.end();
  }
  return false;
}

PromptSource prompt_source(const Row& row, const RowFormat& format) {
  if (format.shares_prompt) return PromptSource::kAnswers;
  const Json* prompt = row.find("prompt");
  if (prompt != nullptr && prompt->is_array()) return PromptSource::kPrompt;
  if (begins_with_question(row.find("chosen")) || begins_with_question(row.find("rejected"))) {
    return PromptSource::kAnswers;
  }
  if (prompt != nullptr) return PromptSource::kPrompt;
  return row.find("conversations") != nullptr ? PromptSource::kConversations
                                              : PromptSource::kInstruction;
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Bytes of the shared beginning.
size_t shared_text(const std::string& chosen, const std::string& rejected) {
  const size_t fewest = std::min(chosen.size(), rejected.size());
  const auto differing =
      std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
  auto shared = static_cast<size_t>(differing.first - chosen.begin());
  const bool differ = shared < fewest;
  if (!differ) --shared;
  while (is_continuation(chosen[shared])) --shared;
  return shared - (differ && shared > 0 && chosen[shared - 1] == ' ');
}

// A text that nothing is made of is named once by count_unused_columns; a question that the answers
// do not begin with would leave them without their prompt.
void require_no_question(const Row& row, const std::string& prompt) {
  for (const char* column : {"question", "query", "input", "system"}) {
    const Json* text = row.find(column);
    if (text == nullptr || !text->is_string()) continue;
    const std::string& question = text->get_ref<const std::string&>();
    if (prompt.find(question) != std::string::npos) continue;
    const bool is_system = std::string_view(column) == "system";
    throw FormatError(
        "{}: found a text in \"{}\" with which \"chosen\" and \"rejected\" do not begin (columns: "
        "{}), expected the prompt there or in \"prompt\"; name its column with --dataset_columns "
        "instruction={} (a conversation) or prompt={} (plain text)",
        row.where(), column, column_names(row), is_system ? "COLUMN" : column,
        is_system ? "COLUMN" : column);
  }
}

Preference split_texts(const Row& row) {
  const std::string& chosen = read_string(row, "chosen");
  const std::string& rejected = read_string(row, "rejected");
  if (chosen.empty() || rejected.empty()) {
    throw FormatError("{}: found an empty text in \"{}\", expected the prompt and an answer",
                      row.where(), chosen.empty() ? "chosen" : "rejected");
  }
  const size_t shared = shared_text(chosen, rejected);
  std::string prompt = chosen.substr(0, shared);
  require_no_question(row, prompt);
  return {.prompt = std::move(prompt),
          .chosen = chosen.substr(shared),
          .rejected = rejected.substr(shared)};
}

Json read_answer(const Row& row, const std::string& column) {
  const Json& answer = *row.find(column);
  if (answer.is_string()) {
    return Json::array({Json{{"role", "assistant"}, {"content", answer}}});
  }
  return read_messages_of(row, column, answer.is_object() ? Json::array({answer}) : answer);
}

Json read_prompt(const Row& row, PromptSource source) {
  if (source == PromptSource::kConversations) return read_messages(row, "conversations");
  if (source == PromptSource::kInstruction) return read_question(row);
  const Json& prompt = *row.find("prompt");
  if (prompt.is_string()) return Json::array({Json{{"role", "user"}, {"content", prompt}}});
  return read_messages_of(row, "prompt", prompt);
}

// An absent member is null in the tables that the reference compares.
bool are_same(const Json& message, const Json& other) {
  const auto has_all_of = [](const Json& a, const Json& b) {
    return std::ranges::all_of(b.items(), [&](const auto& member) {
      return a.value(member.key(), Json()) == member.value();
    });
  };
  return has_all_of(message, other) && has_all_of(other, message);
}

Preference split_turns(const Row& row, Json chosen, Json rejected) {
  const size_t fewest = std::min(chosen.size(), rejected.size());
  size_t shared = 0;
  while (shared + 1 < fewest && are_same(chosen[shared], rejected[shared])) ++shared;
  if (shared == 0) {
    throw FormatError(
        "{}: found no message with which both \"chosen\" and \"rejected\" begin, before an answer "
        "in each, expected the prompt there or in \"prompt\"",
        row.where());
  }
  const auto end = static_cast<std::ptrdiff_t>(shared);
  Json prompt = Json::array();
  prompt.insert(prompt.end(), chosen.begin(), chosen.begin() + end);
  chosen.erase(chosen.begin(), chosen.begin() + end);
  rejected.erase(rejected.begin(), rejected.begin() + end);
  return {
      .prompt = std::move(prompt), .chosen = std::move(chosen), .rejected = std::move(rejected)};
}

}  // namespace

RowFormat detect_preference(const Row& row, const std::string& text_field) {
  const Json* chosen = row.find("chosen");
  const Json* rejected = row.find("rejected");
  if (chosen == nullptr || rejected == nullptr) refuse_as_preference(row, text_field);
  const bool are_texts = chosen->is_string() && rejected->is_string();
  if (!are_texts && !(holds_messages(*chosen) && holds_messages(*rejected))) {
    throw FormatError(
        "{}: found {} in \"chosen\" and {} in \"rejected\", expected two strings or two lists of "
        "messages",
        row.where(), type_of(chosen), type_of(rejected));
  }
  const Json* prompt = row.find("prompt");
  if (prompt != nullptr && !prompt->is_string() && !prompt->is_array()) {
    throw FormatError("{}: found {} in \"prompt\", expected a string or a list of messages",
                      row.where(), type_of(prompt));
  }
  const bool has_other_prompt =
      row.find("conversations") != nullptr || row.find("instruction") != nullptr;
  const bool has_chat = prompt != nullptr ? prompt->is_array() : has_other_prompt;
  return {.kind = are_texts && !has_chat ? RowKind::kPreferenceText : RowKind::kPreferenceMessages,
          .shares_prompt = prompt == nullptr && !has_other_prompt};
}

Preference read_preference(const Row& row, const RowFormat& format) {
  if (format.kind == RowKind::kPreferenceText) {
    if (format.shares_prompt) return split_texts(row);
    return {.prompt = read_string(row, "prompt"),
            .chosen = read_string(row, "chosen"),
            .rejected = read_string(row, "rejected")};
  }
  const PromptSource source = prompt_source(row, format);
  Json chosen = read_answer(row, "chosen"), rejected = read_answer(row, "rejected");
  Preference result = source == PromptSource::kAnswers
                          ? split_turns(row, std::move(chosen), std::move(rejected))
                          : Preference{.prompt = read_prompt(row, source),
                                       .chosen = std::move(chosen),
                                       .rejected = std::move(rejected)};
  add_system(row, result.prompt);
  return result;
}

Preference read_whole_answers(const Row& row, const RowFormat& format) {
  if (format.kind == RowKind::kPreferenceText) {
    if (!format.shares_prompt) return read_preference(row, format);
    const std::string& chosen = read_string(row, "chosen");
    require_no_question(row, chosen);
    return {.prompt = "", .chosen = chosen, .rejected = read_string(row, "rejected")};
  }
  if (prompt_source(row, format) != PromptSource::kAnswers) return read_preference(row, format);
  Preference result{.prompt = Json::array(),
                    .chosen = read_answer(row, "chosen"),
                    .rejected = read_answer(row, "rejected")};
  add_system(row, result.prompt);
  return result;
}

bool is_used_in_preference(const std::string& column, const Row& row, const RowFormat& format) {
  if (column == "chosen" || column == "rejected") return true;
  if (format.kind == RowKind::kPreferenceText) return column == "prompt";
  if (column == "tools" || column == "chat_template_kwargs" || column == "system") return true;
  switch (prompt_source(row, format)) {
    case PromptSource::kAnswers:
      return false;
    case PromptSource::kPrompt:
      return column == "prompt";
    case PromptSource::kConversations:
      return column == "conversations";
    case PromptSource::kInstruction:
      break;
  }
  return column == "instruction" || column == "input" || column == "history";
}

}  // namespace strata::data
