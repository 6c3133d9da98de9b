#include "strata/cli/file_flags.h"

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/cli/run_sources.h"

namespace strata::cli {
namespace {

std::vector<config::Setting> table_of(const std::vector<FileFlag>& known) {
  std::vector<config::Setting> table;
  for (const FileFlag& flag : known) {
    table.push_back({.name = flag.name,
                     .kind = config::Kind::kSource,
                     .is_switch = flag.is_switch,
                     .is_path = flag.is_path});
  }
  return table;
}

}  // namespace

std::string FileFlags::get(const std::string& name, const std::string& otherwise) const {
  const auto found = values.find(name);
  return found == values.end() ? otherwise : found->second;
}

FileFlags read_file_flags(const std::vector<std::string>& arguments, const std::string& command,
                          const std::vector<FileFlag>& known, size_t least, size_t most) {
  const std::vector<config::Setting> table = table_of(known);
  FlagsAndPaths read = read_command_flags_and_paths(table, command, arguments);
  FileFlags flags{.paths = std::move(read.paths), .values = {}};
  for (const config::Given& given : read.given) {
    flags.values[std::string(given.setting->name)] = config::canonical_text(given);
  }
  if (flags.paths.size() >= least && flags.paths.size() <= most) return flags;
  throw ConfigError("strata {}: found {}, expected {}; see strata {} --help", command,
                    counted(flags.paths.size(), "path"),
                    least == most ? std::to_string(least) : fmt::format("{} or {}", least, most),
                    command);
}

}  // namespace strata::cli
