// UTF-8 decoding and character classes; tables come from utf8proc.
#include "strata/text/utf8.h"

#include <algorithm>

#include <utf8proc.h>

namespace strata::text {

char32_t decode_char(std::string_view text, size_t position) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1Fu) << 6 | (at(1) & 0x3Fu);
  if (lead < 0xF0) return (lead & 0x0Fu) << 12 | (at(1) & 0x3Fu) << 6 | (at(2) & 0x3Fu);
  return (lead & 0x07u) << 18 | (at(1) & 0x3Fu) << 12 | (at(2) & 0x3Fu) << 6 | (at(3) & 0x3Fu);
}

void append_utf8(std::string& out, char32_t c) {
  const auto push = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xC0 | c >> 6), push(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    push(0xE0 | c >> 12), push(0x80 | (c >> 6 & 0x3F)), push(0x80 | (c & 0x3F));
  } else {
    push(0xF0 | c >> 18), push(0x80 | (c >> 12 & 0x3F));
    push(0x80 | (c >> 6 & 0x3F)), push(0x80 | (c & 0x3F));
  }
}

size_t previous_char(std::string_view text, size_t position) {
  do {
    --position;
  } while (position > 0 && is_continuation(text[position]));
  return position;
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<uint8_t>(c) >= 0x80) return false;
  }
  return true;
}

size_t valid_char_length(std::string_view text, size_t position, size_t& invalid_length) {
  const auto lead = static_cast<uint8_t>(text[position]);
  if (lead < 0x80) return 1;
  invalid_length = 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and code points over 10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (position + i >= text.size()) return 0;
    const auto byte = static_cast<uint8_t>(text[position + i]);
    if (byte < (i == 1 ? low : 0x80) || byte > (i == 1 ? high : 0xBF)) return 0;
    invalid_length = i + 1;
  }
  return length;
}

bool is_valid_utf8(std::string_view text) {
  size_t invalid = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t length = valid_char_length(text, i, invalid);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  size_t invalid = 0;
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = valid_char_length(bytes, i, invalid);
    if (length == 0) {
      append_utf8(out, 0xFFFD);
      i += invalid;
    } else {
      out.append(bytes, i, length);
      i += length;
    }
  }
  return out;
}

namespace {
utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_letter(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_word(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  // Join_Control, and Other_Alphabetic outside letters and marks: circled and squared letters.
  if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
      (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  const auto k = category(c);
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ME) || k == UTF8PROC_CATEGORY_ND ||
         k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_PC;
}

bool is_number(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

char32_t to_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

char32_t to_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

char32_t to_title(char32_t c) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

bool is_upper(char32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0; }
bool is_lower(char32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0; }

bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

// Numeric_Type=Digit of UnicodeData.txt, which utf8proc does not hold.
bool is_digit(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kOthers[] = {
      {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
      {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
      {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
      {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
      {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
  return is_decimal(c) || std::ranges::any_of(kOthers, [&](const auto& range) {
           return c >= range.first && c <= range.second;
         });
}

void append_folded(std::string& out, char32_t c) {
  utf8proc_int32_t folded[8];
  const auto size = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8,
                                            UTF8PROC_CASEFOLD, nullptr);
  if (size < 1 || size > 8) return append_utf8(out, c);
  for (int i = 0; i < size; ++i) append_utf8(out, static_cast<char32_t>(folded[i]));
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  const auto k = category(c);
  return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;
}

}  // namespace strata::text
