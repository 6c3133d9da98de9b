// Template source to tokens, with Jinja's white-space control (trim_blocks and lstrip_blocks on).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata::text::jinja {

enum class TokenKind {
  kData,  // text outside tags
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;  // name, operator, or the value of a string
  int line;
  int64_t integer = 0;
  double number = 0;
};

// Fault (with the line in its text) for unclosed tags, strings and unknown characters.
std::vector<Token> tokenize(std::string_view source);

}  // namespace strata::text::jinja
