// The table of GPT-2's bytes_to_unicode: printable Latin-1 bytes stand for themselves, the other 68
// for U+0100 onwards in order.
#include "strata/text/byte_level.h"

#include <array>

#include "strata/text/utf8.h"

namespace strata::text {
namespace {

struct ByteTable {
  std::array<char32_t, 256> characters{};
  std::array<int, 324> bytes{};
};

ByteTable make_table() {
  ByteTable table;
  table.bytes.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    table.characters[byte] = is_printable ? static_cast<char32_t>(byte) : next++;
    table.bytes[table.characters[byte]] = byte;
  }
  return table;
}

const ByteTable& table() {
  static const ByteTable table = make_table();
  return table;
}

}  // namespace

void append_byte_character(std::string& out, uint8_t byte) {
  append_utf8(out, table().characters[byte]);
}

std::string bytes_to_characters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_byte_character(out, static_cast<uint8_t>(byte));
  return out;
}

int character_to_byte(char32_t character) {
  return character < table().bytes.size() ? table().bytes[character] : -1;
}

}  // namespace strata::text
