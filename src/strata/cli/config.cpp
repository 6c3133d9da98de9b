// `strata config show | check | docs`.
#include <cstdio>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/cli/command.h"
#include "strata/cli/run_sources.h"
#include "strata/config/describe.h"
#include "strata/config/settings_files.h"

namespace strata::cli {
namespace {

constexpr const char* kUsage =
    "usage: strata config show [flags]    every setting with its value and where that comes from\n"
    "       strata config check FILE      judges a settings file or a file of accelerate\n"
    "       strata config docs            the page docs/guide/settings.md\n";

int show(const std::vector<std::string>& flags) {
  const config::Settings settings = config::resolve(
      {.flags = flags, .environment = process_environment(), .flags_are_mixed = true});
  fmt::print("{}", config::show_settings(settings));
  std::fflush(stdout);
  print_warnings(settings.warnings);
  return 0;
}

int check(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) {
    throw ConfigError("strata config check: found {} arguments, expected one file",
                      arguments.size());
  }
  const std::string& file = arguments[0];
  const char* flag = config::is_accelerate_file(file) ? "--config_file" : "--config";
  const config::Settings settings =
      config::resolve({.flags = {flag, file}, .flags_are_mixed = true});
  print_warnings(settings.warnings);
  fmt::print("{}: no errors\n", file);
  return 0;
}

}  // namespace

int run_config(const std::vector<std::string>& arguments) {
  if (arguments.empty() || wants_help(arguments)) {
    fmt::print("{}", kUsage);
    return arguments.empty() ? 2 : 0;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (arguments[0] == "show") return show(rest);
  if (arguments[0] == "check") return check(rest);
  if (arguments[0] == "docs") {
    fmt::print("{}", config::settings_page());
    return 0;
  }
  throw ConfigError("strata config {}: found an unknown action, expected show, check or docs",
                    arguments[0]);
}

}  // namespace strata::cli
