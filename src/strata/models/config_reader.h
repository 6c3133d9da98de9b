// Typed reading of a model's config.json with the key in every error. Owns: types and ranges of
// single values. Never: relations between keys; each family checks its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::models {

// A missing key or null gives the default, as in the reference. A value of another type or out of
// range is a FormatError "config.json: found KEY = VALUE, expected ...".
class ConfigReader {
 public:
  // Refers to `json`. `prefix` is put before key names in messages ("rope_scaling.").
  explicit ConfigReader(const Json& json, std::string prefix = "");

  bool has(const std::string& key) const;
  // Of a size: below 2^31, so that products of two are far from an int64_t's end.
  int64_t positive_integer(const std::string& key, int64_t fallback) const;
  int64_t integer_up_to(int64_t most, const std::string& key, int64_t fallback) const;  // from 1 on
  int64_t num_layers(const std::string& key, int64_t fallback) const;
  std::optional<int64_t> optional_integer(const std::string& key) const;
  double positive_number(const std::string& key, double fallback) const;
  double number(const std::string& key, double fallback) const;
  double dropout_rate(const std::string& key, double fallback) const;  // from 0 on and below 1
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  // Empty where the key is missing or null.
  std::vector<double> positive_numbers(const std::string& key) const;
  const Json& at(const std::string& key) const { return json_.at(key); }

  const Json& json() const { return json_; }
  const std::string& prefix() const { return prefix_; }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

  const Json& json_;
  std::string prefix_;
};

}  // namespace strata::models
