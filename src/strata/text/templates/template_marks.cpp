#include "strata/text/templates/template_marks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

#include "strata/text/jinja/interpreter.h"
#include "strata/text/jinja/lexer.h"
#include "strata/text/jinja/value.h"

namespace strata::text {
namespace {

using jinja::TokenKind;

constexpr size_t kLongestMark = 64;  // bytes; what is longer is text between brackets
constexpr std::string_view kWideBar = "\uff5c";

constexpr std::array<std::string_view, 9> kClassicMarks = {
    "<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>", "<sop>", "<eop>", "[gMASK]"};
constexpr std::array<std::string_view, 14> kMistralMarks = {
    "[INST]",          "[/INST]",          "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",    "[TOOL_RESULTS]",   "[/TOOL_RESULTS]",   "[TOOL_CONTENT]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[CALL_ID]",         "[ARGS]",
    "[THINK]",         "[/THINK]"};
constexpr std::array<std::string_view, 3> kRoleMarks = {"<|assistant|>", "<|system|>", "<|user|>"};

std::vector<jinja::Token> tokens_of(const std::string& source) {
  try {
    return jinja::tokenize(source);
  } catch (const jinja::Fault&) {
    return {};
  }
}

bool begins_with_bar(std::string_view text) {
  return text.starts_with('|') || text.starts_with(kWideBar);
}
bool ends_with_bar(std::string_view text) {
  return text.ends_with('|') || text.ends_with(kWideBar);
}

// `inner`: what stands between < and >.
bool is_mark(std::string_view inner) {
  const bool has_letter = std::ranges::any_of(
      inner, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; });
  if (!has_letter) return false;
  if (begins_with_bar(inner) || ends_with_bar(inner)) return true;
  const bool is_place = inner.starts_with("start_of_") || inner.starts_with("end_of_") ||
                        inner.starts_with("begin_of_");
  return is_place && inner.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == inner.npos;
}

void find_angle_marks(std::string_view text, std::set<std::string>& marks) {
  for (size_t begin = text.find('<'); begin != text.npos; begin = text.find('<', begin + 1)) {
    const size_t end = text.find_first_of("> \t\n'\"<{}", begin + 1);
    if (end == text.npos || text[end] != '>' || end - begin > kLongestMark) continue;
    if (is_mark(text.substr(begin + 1, end - begin - 1))) {
      marks.emplace(text.substr(begin, end - begin + 1));
    }
  }
}

template <size_t N>
void find_listed(std::string_view text, const std::array<std::string_view, N>& listed,
                 std::set<std::string>& marks) {
  for (const std::string_view mark : listed) {
    if (text.find(mark) != text.npos) marks.emplace(mark);
  }
}

// Whether the template looks first whether the name that stands at `i` is there.
bool is_asked_for(const std::vector<jinja::Token>& tokens, size_t i) {
  const auto is_one_of = [](const jinja::Token& token, std::initializer_list<const char*> words) {
    return token.kind == TokenKind::kName && std::ranges::find(words, token.text) != words.end();
  };
  const bool before = i > 0 && is_one_of(tokens[i - 1], {"if", "elif", "not", "and", "or"});
  const bool after =
      i + 1 < tokens.size() &&
      (is_one_of(tokens[i + 1], {"is", "or", "and", "if"}) || tokens[i + 1].text == "|");
  return before || after;
}

}  // namespace

std::vector<std::string> marks_without_token(const std::string& source, const Tokenizer& tokenizer,
                                             bool is_own) {
  std::set<std::string> marks;
  const bool is_mistral = tokenizer.token_to_id("[INST]").has_value();
  for (const jinja::Token& token : tokens_of(source)) {
    if (token.kind != TokenKind::kData && token.kind != TokenKind::kString) continue;
    find_angle_marks(token.text, marks);
    find_listed(token.text, kClassicMarks, marks);
    if (is_mistral) find_listed(token.text, kMistralMarks, marks);
  }
  const std::vector<AddedToken> added = tokenizer.added_tokens();
  std::vector<std::string> unknown;
  for (const std::string& mark : marks) {
    const bool begins_token = std::ranges::any_of(
        added, [&](const AddedToken& token) { return token.content.starts_with(mark); });
    if (!begins_token && !tokenizer.token_to_id(mark)) unknown.push_back(mark);
  }
  const bool are_roles = std::ranges::all_of(unknown, [](const std::string& mark) {
    return std::ranges::find(kRoleMarks, mark) != kRoleMarks.end();
  });
  const bool knows_a_role = std::ranges::any_of(
      kRoleMarks, [&](std::string_view mark) { return tokenizer.token_to_id(mark).has_value(); });
  if (is_own && are_roles && !knows_a_role) unknown.clear();
  return unknown;
}

bool lacks_end_token(const std::string& source, const Tokenizer& tokenizer) {
  if (tokenizer.specials().eos) return false;
  bool is_written = false;
  const std::vector<jinja::Token> tokens = tokens_of(source);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind != TokenKind::kName || tokens[i].text != "eos_token") continue;
    if (is_asked_for(tokens, i)) return false;
    is_written = true;
  }
  return is_written;
}

std::string dates_of(const std::string& source, std::time_t time) {
  std::string dates;
  const std::vector<jinja::Token> tokens = tokens_of(source);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind != TokenKind::kName || tokens[i].text != "strftime_now") continue;
    const bool is_literal = i + 3 < tokens.size() && tokens[i + 1].text == "(" &&
                            tokens[i + 2].kind == TokenKind::kString && tokens[i + 3].text == ")";
    const bool is_question = i + 1 < tokens.size() && tokens[i + 1].text == "is";
    if (is_question) continue;
    dates += is_literal ? jinja::format_time(tokens[i + 2].text, time) : std::to_string(time);
    dates += '\n';
  }
  return dates;
}

}  // namespace strata::text
