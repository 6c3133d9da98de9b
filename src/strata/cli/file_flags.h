// Arguments of the subcommands that work on files: paths in order, `--name value` and `--name`.
// They are read as the flags of every other command are (config/flags.h). Never: settings of a run
// (config/).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace strata::cli {

struct FileFlags {
  std::vector<std::string> paths;
  std::map<std::string, std::string> values;  // by name with underscores; "true" or "false"

  bool has(const std::string& name) const { return values.contains(name); }
  // Whether the switch was given and not as false.
  bool is_on(const std::string& name) const { return get(name) == "true"; }
  std::string get(const std::string& name, const std::string& otherwise = "") const;
};

// A name that the command takes. A switch is a boolean: `--name`, `--name false`, `--name=no`; a
// leading ~ of a path is the home folder.
struct FileFlag {
  std::string_view name;
  bool is_switch = false;
  bool is_path = false;
};

// Throws ConfigError for unknown names (with the nearest one), missing values, a switch that is no
// boolean and another number of paths than between `least` and `most`; tells of a value that a
// later one replaced.
FileFlags read_file_flags(const std::vector<std::string>& arguments, const std::string& command,
                          const std::vector<FileFlag>& known, size_t least, size_t most);

}  // namespace strata::cli
