// UTF-8 and the character properties that tokenizers ask for. Never normalises (normalizer.h) and
// never matches patterns (regex.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace strata::text {

inline bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Bytes of the character at `position`. Requires: valid UTF-8, position < text.size().
inline size_t char_length(std::string_view text, size_t position) {
  const auto lead = static_cast<uint8_t>(text[position]);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// The code point at `position`. Requires: valid UTF-8, position < text.size().
char32_t decode_char(std::string_view text, size_t position);
void append_utf8(std::string& out, char32_t code_point);
// Start of the character that ends before `position` (> 0).
size_t previous_char(std::string_view text, size_t position);

bool is_ascii(std::string_view text);

// Length in bytes of the valid character at `position`, or 0 if the bytes there are invalid;
// `invalid_length` is then the maximal part that one U+FFFD replaces (Unicode chapter 3.9, as
// Python and Rust do it).
size_t valid_char_length(std::string_view text, size_t position, size_t& invalid_length);
bool is_valid_utf8(std::string_view text);
// bytes.decode("utf-8", errors="replace").
std::string replace_invalid_utf8(std::string_view bytes);

bool is_white_space(char32_t code_point);  // Unicode White_Space
bool is_word(char32_t code_point);         // \w of Rust's regex: letters, marks, digits, joiners
bool is_number(char32_t code_point);       // categories Nd, Nl, No
bool is_punctuation(char32_t code_point);  // categories P
bool is_mark(char32_t code_point);         // categories M
bool is_nonspacing_mark(char32_t code_point);
char32_t to_lower(char32_t code_point);
char32_t to_upper(char32_t code_point);
char32_t to_title(char32_t code_point);
bool is_letter(char32_t code_point);  // category L*
bool is_upper(char32_t code_point);
bool is_lower(char32_t code_point);
bool is_title(char32_t code_point);    // category Lt
bool is_decimal(char32_t code_point);  // category Nd
bool is_digit(char32_t code_point);    // decimals, and digits in circles and the like
// Full case folding: one character may become several.
void append_folded(std::string& out, char32_t code_point);
// Whether Python's repr() shows the character itself rather than an escape.
bool is_printable(char32_t code_point);

}  // namespace strata::text
