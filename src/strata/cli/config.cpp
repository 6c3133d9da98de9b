// `strata config`: the questionnaire, and its actions show, check, default, update, convert, docs,
// schema.
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"
#include "strata/cli/command.h"
#include "strata/cli/config_files.h"
#include "strata/cli/run_sources.h"
#include "strata/config/describe.h"
#include "strata/config/schema.h"
#include "strata/config/settings_files.h"
#include "strata/train/loop/schedules.h"

namespace strata::cli {
namespace {

constexpr const char* kUsage =
    "usage: strata config [--config_file FILE]    asks questions and writes an accelerate file\n"
    "       strata config show [sft] [flags]      every setting with its value and its origin\n"
    "       strata config check FILE              checks a settings file of any kind\n"
    "       strata config default [--config_file FILE] [--mixed_precision P]\n"
    "                                             writes a file without questions\n"
    "       strata config update [--config_file FILE]\n"
    "                                             adds what an older file lacks\n"
    "       strata config convert --to fsdp2|deepspeed|strata FILE [--output_file F] "
    "[--overwrite]\n"
    "       strata config docs                    the page docs/guide/settings.md\n"
    "       strata config schema                  a JSON schema of settings files, for editors\n";

// The recipe may stand before the flags, as after `strata launch`.
int show(std::vector<std::string> words) {
  std::string recipe;
  if (!words.empty() && is_recipe(words[0])) {
    recipe = recipe_of(words[0]);
    words.erase(words.begin());
  }
  const config::Settings settings = config::resolve({.recipe = recipe,
                                                     .flags = words,
                                                     .environment = process_environment(),
                                                     .flags_are_mixed = true});
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
  const config::Settings settings =
      config::resolve({.flags = {config::flag_of_file(file), file}, .flags_are_mixed = true});
  with_sources(settings, [&] { train::require_schedule(settings.config); });
  print_warnings(settings.warnings);
  fmt::print("{}: no errors\n", file);
  return 0;
}

}  // namespace

int run_config(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (arguments.empty() || arguments[0].starts_with("-")) return run_questionnaire(arguments);
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  const std::string& action = arguments[0];
  if (action == "show") return show(rest);
  if (action == "check") return check(rest);
  if (action == "default") return write_default(rest);
  if (action == "update") return update(rest);
  if (action == "convert") return convert(rest);
  if (action == "docs") {
    fmt::print("{}", config::settings_page());
    return 0;
  }
  if (action == "schema") {
    fmt::print("{}\n", dump_python(config::settings_schema(), /*indent=*/1, /*sort_keys=*/false));
    return 0;
  }
  const std::vector<std::string> actions = {"show",    "check", "default", "update",
                                            "convert", "docs",  "schema"};
  const auto near = closest(action, actions);
  throw ConfigError("strata config {}: found an unknown action, expected one of {}; {}", action,
                    fmt::join(actions, ", "),
                    near ? "did you mean " + *near + "?" : "see strata config --help");
}

int run_to_fsdp2(const std::vector<std::string>& arguments) {
  std::vector<std::string> flags = arguments;
  flags.insert(flags.end(), {"--to", "fsdp2"});
  return wants_help(arguments) ? run_config({"--help"}) : convert(flags);
}

}  // namespace strata::cli
