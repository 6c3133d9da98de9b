#include "strata/base/utf8_length.h"

namespace strata {

size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto is_tail = [&](size_t i) { return i < text.size() && (byte(i) & 0xc0) == 0x80; };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return is_tail(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if (!is_tail(1) || !is_tail(2)) return 0;
    if (first == 0xe0 && byte(1) < 0xa0) return 0;  // overlong
    if (first == 0xed && byte(1) > 0x9f) return 0;  // surrogate
    return 3;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if (!is_tail(1) || !is_tail(2) || !is_tail(3)) return 0;
    if (first == 0xf0 && byte(1) < 0x90) return 0;  // overlong
    if (first == 0xf4 && byte(1) > 0x8f) return 0;  // beyond U+10FFFF
    return 4;
  }
  return 0;
}

}  // namespace strata
