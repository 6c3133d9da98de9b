// Follows jinja2/lexer.py.
#include "strata/text/jinja/lexer.h"

#include <charconv>

#include "strata/text/jinja/value.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();  // keep_trailing_newline is off
  return out;
}

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_data();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Fault("line " + std::to_string(line_) + ": " + what);
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool starts(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }
  // Moves on, counting lines.
  void advance(size_t count) {
    for (const size_t end = at_ + count; at_ < end; ++at_) line_ += source_[at_] == '\n';
  }
  void skip_spaces() {
    while (at_ < source_.size() && is_space(decode_char(source_, at_))) {
      advance(char_length(source_, at_));
    }
  }

  void lex_data();
  void add_data(size_t end, char sign, bool is_print);
  void lex_tag(TokenKind begin, TokenKind end, std::string_view closing);
  void lex_expression_token();
  void skip_comment();
  bool lex_raw();
  void finish_tag(std::string_view closing, bool trims_newline);
  bool at_tag_end(std::string_view closing) const {
    return starts(closing) ||
           (starts("-") && source_.compare(at_ + 1, closing.size(), closing) == 0) ||
           (closing != "}}" && starts("+") &&
            source_.compare(at_ + 1, closing.size(), closing) == 0);
  }
  void lex_string();
  void lex_number();
  void lex_operator();

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool is_line_start_ = true;  // only tags stood before on this line
  int depth_ = 0;              // open brackets in the current tag
  std::vector<Token> tokens_;
};

void Lexer::add_data(size_t end, char sign, bool is_print) {
  std::string_view data = std::string_view(source_).substr(at_, end - at_);
  if (sign == '-') {
    while (!data.empty()) {
      const size_t last = previous_char(data, data.size());
      if (!is_space(decode_char(data, last))) break;
      data = data.substr(0, last);
    }
  } else if (sign != '+' && !is_print) {
    const size_t newline = data.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    bool is_blank = line_begin > 0 || is_line_start_;
    for (size_t i = line_begin; i < data.size() && is_blank; i += char_length(data, i)) {
      is_blank = is_space(decode_char(data, i));
    }
    if (is_blank) data = data.substr(0, line_begin);
  }
  if (!data.empty()) add(TokenKind::kData, std::string(data));
  advance(end - at_);
}

void Lexer::lex_data() {
  size_t tag = at_;
  for (;; ++tag) {
    tag = source_.find('{', tag);
    if (tag == std::string::npos || tag + 1 >= source_.size()) {
      if (at_ < source_.size()) add(TokenKind::kData, source_.substr(at_));
      at_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    if (kind == '{' || kind == '%' || kind == '#') break;
  }
  const char kind = source_[tag + 1];
  const char next = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
  const char sign = next == '-' || (next == '+' && kind != '{') ? next : '\0';
  add_data(tag, sign, kind == '{');
  advance(sign == '\0' ? 2 : 3);
  is_line_start_ = false;
  if (kind == '#') {
    skip_comment();
  } else if (kind == '{') {
    lex_tag(TokenKind::kPrintBegin, TokenKind::kPrintEnd, "}}");
  } else if (!lex_raw()) {
    lex_tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
  }
}

// Steps over [+-]closing and the white space that goes with it.
void Lexer::finish_tag(std::string_view closing, bool trims_newline) {
  const char sign = starts(closing) ? '\0' : source_[at_];
  advance(closing.size() + (sign == '\0' ? 0 : 1));
  if (sign == '-') {
    skip_spaces();
  } else if (sign == '\0' && trims_newline && starts("\n")) {
    advance(1);
  }
  is_line_start_ = at_ > 0 && source_[at_ - 1] == '\n';
}

void Lexer::skip_comment() {
  const size_t end = source_.find("#}", at_);
  if (end == std::string::npos) fail("missing end of comment tag");
  size_t stop = end;
  if (stop > at_ && (source_[stop - 1] == '-' || source_[stop - 1] == '+')) --stop;
  advance(stop - at_);
  finish_tag("#}", /*trims_newline=*/true);
}

bool Lexer::lex_raw() {
  const size_t begin = at_;
  const int begin_line = line_;
  const auto reset = [&] {
    at_ = begin;
    line_ = begin_line;
    return false;
  };
  skip_spaces();
  if (!starts("raw")) return reset();
  advance(3);
  skip_spaces();
  if (!starts("%}") && !starts("-%}")) return reset();
  finish_tag("%}", /*trims_newline=*/false);
  for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
       tag = source_.find("{%", tag + 2)) {
    size_t word = tag + 2;
    const char sign = word < source_.size() ? source_[word] : '\0';
    if (sign == '-' || sign == '+') ++word;
    while (word < source_.size() && is_space(static_cast<uint8_t>(source_[word]))) ++word;
    if (source_.compare(word, 6, "endraw") != 0) continue;
    word += 6;
    while (word < source_.size() && is_space(static_cast<uint8_t>(source_[word]))) ++word;
    add_data(tag, sign, /*is_print=*/false);
    advance(word - at_);
    if (!at_tag_end("%}")) fail("missing end of endraw tag");
    finish_tag("%}", /*trims_newline=*/true);
    return true;
  }
  fail("missing end of raw block");
}

void Lexer::lex_tag(TokenKind begin, TokenKind end, std::string_view closing) {
  add(begin, "");
  depth_ = 0;
  while (true) {
    skip_spaces();
    if (at_ >= source_.size())
      fail("unexpected end of template, expected '" + std::string(closing) + "'");
    if (depth_ == 0 && at_tag_end(closing)) break;
    lex_expression_token();
  }
  add(end, "");
  finish_tag(closing, end == TokenKind::kBlockEnd);
}

void Lexer::lex_expression_token() {
  const char c = source_[at_];
  if (c == '"' || c == '\'') return lex_string();
  if (is_digit(c)) return lex_number();
  if (!is_name_start(c)) return lex_operator();
  size_t end = at_;
  while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
  add(TokenKind::kName, source_.substr(at_, end - at_));
  advance(end - at_);
}

// Python's escapes; an unknown one keeps its backslash.
void Lexer::lex_string() {
  const char quote = source_[at_];
  std::string value;
  size_t i = at_ + 1;
  const auto read_code = [&](size_t digits, int base) {
    uint32_t code = 0;
    const char* from = source_.data() + i;
    const char* to = source_.data() + std::min(i + digits, source_.size());
    const auto result = std::from_chars(from, to, code, base);
    if (base == 16 && result.ptr != from + digits) fail("broken \\ escape in a string");
    i += static_cast<size_t>(result.ptr - from);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("broken \\ escape in a string");
    append_utf8(value, code);
  };
  for (;;) {
    if (i >= source_.size()) fail("string without end");
    const char c = source_[i++];
    if (c == quote) break;
    if (c != '\\' || i >= source_.size()) {
      value.push_back(c);
      continue;
    }
    const char escape = source_[i++];
    constexpr std::string_view kEscapes = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t known = kEscapes.find(escape); known != std::string_view::npos) {
      value.push_back(kMeanings[known]);
    } else if (escape == 'x' || escape == 'u' || escape == 'U') {
      read_code(escape == 'x' ? 2 : escape == 'u' ? 4 : 8, 16);
    } else if (escape >= '0' && escape <= '7') {
      --i;
      read_code(3, 8);
    } else if (escape != '\n') {
      value += {'\\', escape};
    }
  }
  add(TokenKind::kString, std::move(value));
  advance(i - at_);
}

void Lexer::lex_number() {
  std::string digits;
  size_t i = at_;
  int base = 10;
  if (source_[i] == '0' && i + 1 < source_.size()) {
    const char kind = static_cast<char>(source_[i + 1] | 0x20);
    base = kind == 'x' ? 16 : kind == 'b' ? 2 : kind == 'o' ? 8 : 10;
    if (base != 10) i += 2;
  }
  const auto read_digits = [&] {
    for (; i < source_.size() &&
           (std::isalnum(static_cast<uint8_t>(source_[i])) || source_[i] == '_');
         ++i) {
      const bool is_exponent = base == 10 && (source_[i] | 0x20) == 'e';
      if (base < 16 && !is_digit(source_[i]) && source_[i] != '_' && !is_exponent) break;
      if (source_[i] != '_') digits.push_back(source_[i]);
      if (is_exponent && i + 1 < source_.size() &&
          (source_[i + 1] == '-' || source_[i + 1] == '+')) {
        if (source_[++i] == '-') digits.push_back('-');
      }
    }
  };
  read_digits();
  if (base == 10 && i + 1 < source_.size() && source_[i] == '.' && is_digit(source_[i + 1])) {
    digits.push_back('.');
    ++i;
    read_digits();
  }
  const char* end = digits.data() + digits.size();
  const bool is_float = base == 10 && digits.find_first_of(".eE") != std::string::npos;
  Token token{is_float ? TokenKind::kFloat : TokenKind::kInteger, digits, line_};
  const auto result = is_float ? std::from_chars(digits.data(), end, token.number)
                               : std::from_chars(digits.data(), end, token.integer, base);
  if (result.ec != std::errc() || result.ptr != end) fail("broken number '" + digits + "'");
  tokens_.push_back(std::move(token));
  advance(i - at_);
}

void Lexer::lex_operator() {
  static constexpr std::string_view kOperators[] = {
      "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
  for (const std::string_view op : kOperators) {
    if (!starts(op)) continue;
    depth_ += op == "(" || op == "[" || op == "{";
    depth_ -= op == ")" || op == "]" || op == "}";
    if (depth_ < 0) fail("unexpected '" + std::string(op) + "'");
    add(TokenKind::kOperator, std::string(op));
    return advance(op.size());
  }
  fail("unexpected character '" + source_.substr(at_, 1) + "'");
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  for (size_t at = 0, line = 1, invalid = 0; at < source.size();) {
    const size_t length = valid_char_length(source, at, invalid);
    if (length == 0) {
      throw Fault("line " + std::to_string(line) + ": found bytes that are not UTF-8");
    }
    line += source[at] == '\n';
    at += length;
  }
  return Lexer(source).run();
}

}  // namespace strata::text::jinja
