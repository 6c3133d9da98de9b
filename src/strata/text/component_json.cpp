// Field access with errors; no meaning of any component.
#include "strata/text/component_json.h"

#include "strata/base/error.h"

namespace strata::text {
namespace {

// The field, or nullptr when absent or null.
const Json* find_field(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) {
    throw FormatError("{}: found {}, expected an object", where, object.type_name());
  }
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

[[noreturn]] void throw_type(const Json& value, const char* key, const char* expected,
                             const std::string& where) {
  throw FormatError("{}: found {} for \"{}\", expected {}", where, value.type_name(), key,
                    expected);
}

}  // namespace

const Json& require_field(const Json& object, const char* key, const std::string& where) {
  const Json* value = find_field(object, key, where);
  if (value == nullptr) throw FormatError("{}: found no \"{}\", expected one", where, key);
  return *value;
}

bool bool_field(const Json& object, const char* key, bool fallback, const std::string& where) {
  const Json* value = find_field(object, key, where);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) throw_type(*value, key, "true or false", where);
  return value->get<bool>();
}

int64_t int_field(const Json& object, const char* key, int64_t fallback, const std::string& where) {
  const Json* value = find_field(object, key, where);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer()) throw_type(*value, key, "an integer", where);
  return value->get<int64_t>();
}

std::optional<std::string> string_field(const Json& object, const char* key,
                                        const std::string& where) {
  const Json* value = find_field(object, key, where);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw_type(*value, key, "a string", where);
  return value->get<std::string>();
}

std::string required_string(const Json& object, const char* key, const std::string& where) {
  auto value = string_field(object, key, where);
  if (!value) throw FormatError("{}: found no \"{}\", expected a string", where, key);
  return *value;
}

std::string component_type(const Json& object, const std::string& where) {
  return required_string(object, "type", where);
}

void throw_unsupported(const std::string& type, const std::string& where, const char* supported) {
  throw FormatError("{}: found type \"{}\", expected one of {}", where, type, supported);
}

}  // namespace strata::text
