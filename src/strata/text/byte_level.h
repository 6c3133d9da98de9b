// GPT-2's bijection between the 256 bytes and 256 printable characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace strata::text {

// Each byte as its character: "é b" -> "Ã©Ġb".
std::string bytes_to_characters(std::string_view bytes);
void append_byte_character(std::string& out, uint8_t byte);
// The byte of a character, or -1 if it stands for none.
int character_to_byte(char32_t character);

}  // namespace strata::text
