// Environment and arguments to config::Sources.
#include "strata/cli/run_sources.h"

#include <cstdio>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/json.h"

extern char** environ;

namespace strata::cli {

config::Environment process_environment() {
  config::Environment result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

config::Sources rank_sources(const std::vector<std::string>& flags) {
  config::Sources sources{.flags = flags, .environment = process_environment()};
  auto launched = sources.environment.find(kLaunchFlagsVariable);
  if (launched != sources.environment.end()) {
    for (const Json& flag : parse_json(launched->second, kLaunchFlagsVariable)) {
      sources.launch_flags.push_back(flag.get<std::string>());
    }
    sources.use_default_file = true;
  }
  return sources;
}

std::string launch_flags_value(const std::vector<std::string>& flags) {
  Json list = Json::array();
  for (const std::string& flag : flags) list.push_back(flag);
  return dump_python(list, /*indent=*/-1);
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
}

void require_recipe(const std::string& program) {
  if (program == "sft") return;
  const std::string name = std::filesystem::path(program).filename().string();
  if (name.find("seq2seq") != std::string::npos) {
    throw ConfigError(
        "{}: found a sequence-to-sequence recipe, expected sft; it is not supported "
        "in this version",
        program);
  }
  if (!name.ends_with(".py")) {
    throw ConfigError(
        "{}: found an unknown recipe, expected sft or a script's name ending in .py; "
        "for a program of your own add --no_python",
        program);
  }
  fmt::print(stderr, "{}: running the built-in recipe sft in its place\n", program);
}

}  // namespace strata::cli
