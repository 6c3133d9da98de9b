// Which fields of a struct differ, by their places: for tests that go through all of them. The test
// names each field once in a structured binding, which no longer compiles when there is another.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace strata::testing {

// Of two results of std::tie().
template <typename... Fields>
std::vector<bool> changed_fields(const std::tuple<Fields&...>& a, const std::tuple<Fields&...>& b) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::vector<bool>{std::get<I>(a) != std::get<I>(b)...};
  }
  (std::index_sequence_for<Fields...>());
}

}  // namespace strata::testing
