// Mappings of YAML (and so JSON) files as keys with line numbers. Owns: duplicates, what counts as
// null. Never: which keys are known.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include <yaml-cpp/yaml.h>

#include "strata/base/json.h"
#include "strata/config/value.h"

namespace strata::config {

// The one document of the file, a mapping ("{}" is an empty one).
// Throws ConfigError: the file cannot be read, is empty or binary, or "FILE:LINE:COLUMN: ..." for
// what is not YAML.
YAML::Node read_yaml_mapping(const std::filesystem::path& path);
// The same of a text; `name` stands for the file in messages.
YAML::Node parse_yaml_mapping(const std::string& text, const std::string& name);

// Calls `visit(key, value, "FILE:LINE")` in the file's order, then for the keys that "<<" merges
// and that the mapping does not have itself. Throws ConfigError for a repeated key, one that is no
// text, or a "<<" that merges no mappings, or mappings with a key in common.
void for_each_key(const YAML::Node& mapping, const std::string& file,
                  const std::function<void(const std::string& key, const YAML::Node& value,
                                           const std::string& place)>& visit);

// The key's value, also where "<<" merges it; of several the first, without the errors of
// for_each_key. An undefined node where there is none.
YAML::Node find_key(const YAML::Node& mapping, const std::string& key);

// The whole file with the types that YAML 1.1 gives (yes, on, 0x1f, ...), as PyYAML reads it,
// except that numbers like 1e-4 are numbers. ConfigError as above, and for a repeated key at any
// depth.
Json read_yaml_json(const std::filesystem::path& path);

// Whether YAML 1.1 reads the plain scalar as something else than text: boolean, number, null, date.
bool is_yaml11_special(const std::string& text);

// Scalars and lists of scalars; a mapping becomes one JSON text. Empty lists and mappings are null.
Value yaml_value(const YAML::Node& node, const std::string& place);

}  // namespace strata::config
