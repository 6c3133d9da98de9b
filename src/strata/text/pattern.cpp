// Reads the two pattern forms.
#include "strata/text/pattern.h"

#include "strata/base/error.h"
#include "strata/text/component_json.h"

namespace strata::text {

Regex make_pattern(const Json& json, const std::string& where) {
  if (json.is_string()) return Regex::literal(json.get<std::string>());
  if (const auto text = string_field(json, "String", where)) return Regex::literal(*text);
  if (const auto pattern = string_field(json, "Regex", where)) return Regex(*pattern);
  throw FormatError("{}: found pattern {}, expected {{\"String\": ...}} or {{\"Regex\": ...}}",
                    where, json.dump());
}

}  // namespace strata::text
