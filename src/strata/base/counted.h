// A number with its noun for messages: "1 row", "3 rows", "0 branches". Never: words of another
// form, such as verbs.
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace strata {

// `plural`: of nouns that take more than an s.
template <typename Integer>
std::string counted(Integer count, std::string_view noun, std::string_view plural = {}) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

}  // namespace strata
