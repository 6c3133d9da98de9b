#include "strata/models/config_reader.h"

#include <cmath>
#include <limits>

#include "strata/base/error.h"

namespace strata::models {

ConfigReader::ConfigReader(const Json& json, std::string prefix)
    : json_(json), prefix_(std::move(prefix)) {
  if (!json.is_object()) {
    throw FormatError("config.json: found {} at \"{}\", expected an object; fix the file",
                      json.type_name(), prefix_);
  }
}

void ConfigReader::fail(const std::string& key, const std::string& expected) const {
  throw FormatError("config.json: found {}{} = {}, expected {}; fix the file", prefix_, key,
                    dump_python(json_.at(key), /*indent=*/-1), expected);
}

bool ConfigReader::has(const std::string& key) const {
  return json_.contains(key) && !json_.at(key).is_null();
}

std::optional<int64_t> ConfigReader::optional_integer(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  const Json& number = json_.at(key);
  if (number.is_number_float() && std::abs(number.get<double>()) >= 0x1p63) {
    fail(key, "an integer that fits 64 bits");
  }
  if (!number.is_number_integer()) fail(key, "an integer");
  return number.get<int64_t>();
}

int64_t ConfigReader::positive_integer(const std::string& key, int64_t fallback) const {
  return integer_up_to(std::numeric_limits<int32_t>::max(), key, fallback);
}

int64_t ConfigReader::num_layers(const std::string& key, int64_t fallback) const {
  constexpr int64_t kMost = 4096;  // which are made one by one
  return integer_up_to(kMost, key, fallback);
}

int64_t ConfigReader::integer_up_to(int64_t most, const std::string& key, int64_t fallback) const {
  const int64_t value = optional_integer(key).value_or(fallback);
  if (value < 1) fail(key, "an integer of at least 1");
  if (has(key) && value > most) fail(key, fmt::format("at most {}", most));
  return value;
}

double ConfigReader::number(const std::string& key, double fallback) const {
  if (!has(key)) return fallback;
  if (!json_.at(key).is_number()) fail(key, "a number");
  return json_.at(key).get<double>();
}

double ConfigReader::positive_number(const std::string& key, double fallback) const {
  const double value = number(key, fallback);
  if (!(value > 0)) fail(key, "a number above 0");
  return value;
}

double ConfigReader::dropout_rate(const std::string& key, double fallback) const {
  const double rate = number(key, fallback);
  if (rate >= 0 && rate < 1) return rate;
  throw FormatError(
      "config.json: found {}{} = {}, expected a number from 0 on and below 1; fix the file",
      prefix_, key, rate);
}

bool ConfigReader::boolean(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!json_.at(key).is_boolean()) fail(key, "true or false");
  return json_.at(key).get<bool>();
}

std::string ConfigReader::text(const std::string& key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!json_.at(key).is_string()) fail(key, "a string");
  return json_.at(key).get<std::string>();
}

std::vector<double> ConfigReader::positive_numbers(const std::string& key) const {
  std::vector<double> list;
  if (!has(key)) return list;
  const Json& values = json_.at(key);
  if (!values.is_array()) fail(key, "a list of numbers");
  for (const Json& value : values) {
    if (!value.is_number() || !(value.get<double>() > 0)) fail(key, "a list of numbers above 0");
    list.push_back(value.get<double>());
  }
  return list;
}

}  // namespace strata::models
