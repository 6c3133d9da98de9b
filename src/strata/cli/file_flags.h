// Arguments of the subcommands that work on files: paths in order, `--name value` and `--name`.
// Never: settings of a run (config/).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strata::cli {

struct FileFlags {
  std::vector<std::string> paths;
  std::map<std::string, std::string> values;  // by name with underscores; "true" for a switch

  bool has(const std::string& name) const { return values.contains(name); }
  std::string get(const std::string& name, const std::string& otherwise = "") const;
};

// A name that the command takes; a switch has no value.
struct FileFlag {
  std::string_view name;
  bool is_switch = false;
};

// Throws ConfigError for unknown names (with the nearest one), missing values and another number of
// paths than between `least` and `most`.
FileFlags read_file_flags(const std::vector<std::string>& arguments, const std::string& command,
                          const std::vector<FileFlag>& known, size_t least, size_t most);

}  // namespace strata::cli
