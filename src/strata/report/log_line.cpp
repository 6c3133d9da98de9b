#include "strata/report/log_line.h"

#include <fmt/format.h>

namespace strata::report {
namespace {

std::string python_repr(const Json& value) {
  if (value.is_number_float()) {
    return fmt::format("'{:.4g}'", value.get<double>());
  }
  if (value.is_null()) {
    return "None";
  }
  if (value.is_boolean()) {
    return value.get<bool>() ? "True" : "False";
  }
  if (value.is_string()) {
    return fmt::format("'{}'", value.get<std::string>());
  }
  return dump_python(value, /*indent=*/-1, /*sort_keys=*/false);
}

}  // namespace

std::string four_digits(double value) { return fmt::format("{:.4g}", value); }

std::string log_line(const Json& values) {
  std::string line = "{";
  for (const auto& [key, value] : values.items()) {
    if (key == "total_flos") {
      continue;
    }
    line += fmt::format("{}'{}': {}", line.size() > 1 ? ", " : "", key, python_repr(value));
  }
  return line + "}";
}

}  // namespace strata::report
