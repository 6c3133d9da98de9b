#include "strata/cli/file_flags.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"

namespace strata::cli {

std::string FileFlags::get(const std::string& name, const std::string& otherwise) const {
  const auto found = values.find(name);
  return found == values.end() ? otherwise : found->second;
}

FileFlags read_file_flags(const std::vector<std::string>& arguments, const std::string& command,
                          const std::vector<FileFlag>& known, size_t least, size_t most) {
  FileFlags flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--")) {
      flags.paths.push_back(arguments[i]);
      continue;
    }
    std::string name = arguments[i].substr(2);
    std::optional<std::string> value;
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    std::ranges::replace(name, '-', '_');
    const auto flag = std::ranges::find(known, name, &FileFlag::name);
    if (flag == known.end()) {
      std::vector<std::string> names;
      for (const FileFlag& candidate : known) names.emplace_back(candidate.name);
      const auto near = closest(name, names);
      throw ConfigError("strata {}: found the unknown flag --{}, expected one of --{}{}", command,
                        name, fmt::join(names, ", --"),
                        near ? "; did you mean --" + *near + "?" : "");
    }
    if (flag->is_switch && !value) value = "true";
    if (!value && i + 1 < arguments.size()) value = arguments[++i];
    if (!value)
      throw ConfigError("strata {}: found --{} without a value, expected one", command, name);
    flags.values[name] = *value;
  }
  if (flags.paths.size() < least || flags.paths.size() > most) {
    throw ConfigError("strata {}: found {} path{}, expected {}; see strata {} --help", command,
                      flags.paths.size(), flags.paths.size() == 1 ? "" : "s",
                      least == most ? std::to_string(least) : fmt::format("{} or {}", least, most),
                      command);
  }
  return flags;
}

}  // namespace strata::cli
