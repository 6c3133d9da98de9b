#include "strata/base/visible_text.h"

#include <cstdint>

#include <fmt/format.h>

#include "strata/base/utf8_length.h"

namespace strata {
namespace {

uint32_t code_point(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  uint32_t code = character.size() == 1 ? first : first & (0x7fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) {
    code = (code << 6) | (static_cast<unsigned char>(character[i]) & 0x3fu);
  }
  return code;
}

bool is_obeyed(uint32_t code) {
  if (code < 0x20) return code != '\n' && code != '\t';
  const bool is_late_control = code >= 0x7f && code <= 0x9f;
  const bool is_line_end = code == 0x2028 || code == 0x2029;
  const bool is_direction =
      (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return is_late_control || is_line_end || is_direction;
}

std::string escaped(uint32_t code) {
  if (code == '\r') return "\\r";
  if (code == '\b') return "\\b";
  return fmt::format("\\u{:04x}", code);
}

}  // namespace

std::string visible(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
      continue;
    }
    const std::string_view character = text.substr(0, length);
    const uint32_t code = code_point(character);
    if (is_obeyed(code)) {
      out += escaped(code);
    } else {
      out += character;
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace strata
