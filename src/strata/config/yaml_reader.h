// Mappings of YAML (and so JSON) files as keys with line numbers. Owns: duplicates, what counts as
// null. Never: which keys are known.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include <yaml-cpp/yaml.h>

#include "strata/config/value.h"

namespace strata::config {

// The one document of the file, a mapping (an empty file is an empty one).
// Throws ConfigError: the file cannot be read, or "FILE:LINE:COLUMN: ..." for what is not YAML.
YAML::Node read_yaml_mapping(const std::filesystem::path& path);

// Calls `visit(key, value, "FILE:LINE")` in the file's order. Throws ConfigError for a repeated key
// or one that is no text.
void for_each_key(const YAML::Node& mapping, const std::string& file,
                  const std::function<void(const std::string& key, const YAML::Node& value,
                                           const std::string& place)>& visit);

// Scalars and lists of scalars; a mapping becomes one JSON text. Empty lists and mappings are null.
Value yaml_value(const YAML::Node& node, const std::string& place);

}  // namespace strata::config
