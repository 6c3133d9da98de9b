#include "strata/data/row_collector.h"

#include "strata/base/error.h"

namespace strata::data {
namespace {

const char* describe(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  return value.is_null() ? "null" : "a number";
}

}  // namespace

void RowCollector::add(Json fields, int64_t line) {
  if (!fields.is_object()) {
    return refuse(
        fmt::format("{}:{}: found {}, expected a JSON object; give each row as "
                    "{{\"column\": value, ...}}",
                    file(), line, describe(fields)));
  }
  split_.rows.push_back({.fields = std::move(fields), .file = file_, .line = line});
}

void RowCollector::refuse(const std::string& message) {
  if (!skips_) throw FormatError(message);
  if (split_.bad_rows.count++ == 0) split_.bad_rows.first = message;
}

}  // namespace strata::data
