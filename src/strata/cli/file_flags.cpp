#include "strata/cli/file_flags.h"

#include <algorithm>
#include <functional>
#include <set>

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

// Commands that name models by flags teach names that those which work on files do not have.
void refuse_flags_for_paths(const std::vector<std::string>& arguments, const std::string& command,
                            const std::vector<FileFlag>& known) {
  static const std::set<std::string, std::less<>> kPaths = {
      "model",  "model_name_or_path", "adapter", "adapter_name_or_path", "input",
      "output", "output_dir"};
  const bool has_base = std::ranges::find(known, "base_model", &FileFlag::name) != known.end();
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const std::string written = argument.substr(0, argument.find('='));
    const std::string name = config::normalized_name(written.substr(2));
    if (!kPaths.contains(name) || std::ranges::find(known, name, &FileFlag::name) != known.end()) {
      continue;
    }
    throw ConfigError(
        "{}: found an unknown flag, expected the folders without flags before them, in the order "
        "that strata {} --help says{}",
        written, command,
        has_base && name.starts_with("model") ? "; the base is --base_model FOLDER" : "");
  }
}

}  // namespace

std::string FileFlags::get(const std::string& name, const std::string& otherwise) const {
  const auto found = values.find(name);
  return found == values.end() ? otherwise : found->second;
}

FileFlags read_file_flags(const std::vector<std::string>& arguments, const std::string& command,
                          const std::vector<FileFlag>& known, size_t least, size_t most) {
  refuse_flags_for_paths(arguments, command, known);
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
