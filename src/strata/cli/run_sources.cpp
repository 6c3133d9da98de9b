// Environment and arguments to config::Sources.
#include "strata/cli/run_sources.h"

#include <cstdio>
#include <string_view>

#include <fmt/format.h>

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

}  // namespace strata::cli
