#include "strata/base/byte_size.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

#include "strata/base/error.h"

namespace strata {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};

constexpr std::array<Unit, 11> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"kb", 1e3},
                                          {"mb", 1e6},
                                          {"gb", 1e9},
                                          {"tb", 1e12},
                                          {"kib", 0x1p10},
                                          {"mib", 0x1p20},
                                          {"gib", 0x1p30},
                                          {"tib", 0x1p40},
                                          {"pib", 0x1p50}}};

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace

uint64_t parse_byte_size(std::string_view text) {
  const std::string_view trimmed = trim(text);
  double value = 0;
  const auto number = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), value,
                                      std::chars_format::fixed);
  std::string unit;
  if (number.ec == std::errc()) {
    const auto used = static_cast<size_t>(number.ptr - trimmed.data());
    for (const char c : trim(trimmed.substr(used))) {
      unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    for (const Unit& known : kUnits) {
      const double bytes = std::floor(value * known.bytes);
      if (known.name == unit && bytes >= 1 && bytes < 0x1p63) return static_cast<uint64_t>(bytes);
    }
  }
  throw ConfigError(
      "size: found \"{}\", expected a positive number with KB, MB, GB, TB, KiB, MiB, GiB "
      "or TiB; write it like 50GB",
      text);
}

uint64_t parse_memory_size(std::string_view text) {
  const uint64_t bytes = parse_byte_size(text);
  const bool has_unit = std::isalpha(static_cast<unsigned char>(trim(text).back())) != 0;
  if (has_unit || bytes >= 1'000'000) return bytes;
  throw ConfigError("size: found \"{}\", expected memory with a unit; write it like 50GB", text);
}

}  // namespace strata
