// Typed access to the fields of tokenizer.json's components, with errors that name the place.
#pragma once

#include <optional>
#include <string>

#include "strata/base/json.h"

namespace strata::text {

// `where` is the path inside the file ("tokenizer.json: model"); every function throws FormatError.
const Json& require_field(const Json& object, const char* key, const std::string& where);
bool bool_field(const Json& object, const char* key, bool fallback, const std::string& where);
// Absent or null gives `fallback`; a value of another type is an error.
int64_t int_field(const Json& object, const char* key, int64_t fallback, const std::string& where);
std::optional<std::string> string_field(const Json& object, const char* key,
                                        const std::string& where);
std::string required_string(const Json& object, const char* key, const std::string& where);
// The "type" of a component.
std::string component_type(const Json& object, const std::string& where);
[[noreturn]] void throw_unsupported(const std::string& type, const std::string& where,
                                    const char* supported);

}  // namespace strata::text
