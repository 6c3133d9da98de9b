// A value of adapter_config.json while it is read. Owns: its types and the errors that name file,
// key and value. Never: what a key means (adapter_files_reader.cpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::hf {

// Refers to what it is made of. Every reading function throws FormatError for another type.
class AdapterField {
 public:
  AdapterField(const Json& value, std::string_view key, const std::string& subject)
      : value_(value), key_(key), subject_(subject) {}

  // FormatError: the file is wrong.
  [[noreturn]] void fail(std::string_view expected) const {
    throw FormatError("{}: {}: found {}, expected {}; correct the file", subject_, key_, text(),
                      expected);
  }
  // ConfigError: the file is right, and this version cannot apply it.
  [[noreturn]] void refuse(std::string_view expected) const {
    throw ConfigError(
        "{}: {}: found {}, expected {}; this version cannot apply it, use an adapter "
        "without it",
        subject_, key_, text(), expected);
  }

  double number() const {
    if (!value_.is_number()) fail("a number");
    const double number = value_.get<double>();
    if (!std::isfinite(number)) fail("a finite number");
    return number;
  }
  int64_t positive_integer() const {
    if (!value_.is_number_integer() || value_.get<int64_t>() <= 0) fail("a positive integer");
    return value_.get<int64_t>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) fail("true or false");
    return value_.get<bool>();
  }
  // null is the empty text.
  std::string text_or_null() const {
    if (value_.is_null()) return "";
    if (!value_.is_string()) fail("a string or null");
    return value_.get<std::string>();
  }
  // null is the empty list.
  std::vector<std::string> names() const {
    if (value_.is_null()) return {};
    const auto is_string = [](const Json& item) { return item.is_string(); };
    if (!value_.is_array() || !std::all_of(value_.begin(), value_.end(), is_string)) {
      fail("a list of names or null");
    }
    return value_.get<std::vector<std::string>>();
  }
  // An integer, a list of them, or null.
  std::vector<int64_t> integers() const {
    if (value_.is_null()) return {};
    if (value_.is_number_integer()) return {value_.get<int64_t>()};
    const auto is_integer = [](const Json& item) { return item.is_number_integer(); };
    if (!value_.is_array() || !std::all_of(value_.begin(), value_.end(), is_integer)) {
      fail("an integer, a list of integers or null");
    }
    return value_.get<std::vector<int64_t>>();
  }
  // An object of numbers in its order; null is empty.
  template <typename T>
  std::vector<std::pair<std::string, T>> patterns() const {
    std::vector<std::pair<std::string, T>> result;
    if (value_.is_null()) return result;
    if (!value_.is_object()) fail("an object of numbers");
    for (const auto& [expression, number] : value_.items()) {
      if (std::is_integral_v<T> ? !number.is_number_integer() : !number.is_number()) {
        throw FormatError(
            "{}: {}: found {} for \"{}\", expected a {}; correct the file", subject_, key_,
            dump_python(number, /*indent=*/-1, /*sort_keys=*/false, /*ensure_ascii=*/false),
            expression, std::is_integral_v<T> ? "whole number" : "number");
      }
      result.emplace_back(expression, number.template get<T>());
    }
    return result;
  }
  const Json& value() const { return value_; }
  const std::string& subject() const { return subject_; }

 private:
  std::string text() const {
    return dump_python(value_, /*indent=*/-1, /*sort_keys=*/false, /*ensure_ascii=*/false);
  }

  const Json& value_;
  std::string_view key_;
  const std::string& subject_;
};

}  // namespace strata::hf
