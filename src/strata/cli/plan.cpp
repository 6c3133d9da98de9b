// `strata plan` (`strata estimate-memory`): the memory of a run before it starts.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/cli/command.h"
#include "strata/cli/plan_report.h"
#include "strata/cli/run_sources.h"
#include "strata/config/describe.h"
#include "strata/config/field_text.h"
#include "strata/config/flags.h"
#include "strata/config/settings/table.h"

namespace strata::cli {
namespace {

constexpr const char* kUsage =
    "usage: strata plan [MODEL] [flags of strata launch and of its recipe] [flags of plan]\n"
    "       strata estimate-memory ...                              the same\n\n"
    "Shows what one rank of the run would hold in memory, by kind and phase. Needs config.json, "
    "no\n"
    "weights. A command line of strata launch works with `launch` replaced by `plan`. Exit code "
    "1:\n"
    "it does not fit into --device_memory.\n";

// accelerate estimate-memory MODEL: the name may stand alone before the flags.
std::vector<std::string> with_named_model(std::vector<std::string> arguments) {
  const bool is_model = !arguments.empty() && !arguments[0].starts_with("-") &&
                        !arguments[0].empty() && !is_recipe(arguments[0]) &&
                        !arguments[0].ends_with(".yaml") && !arguments[0].ends_with(".yml");
  if (is_model) arguments.insert(arguments.begin(), "--model_name_or_path");
  return arguments;
}

// Whether the word before it is a flag that takes a value: `--dataset_name sft` names data.
bool is_value(const std::vector<std::string>& words, std::vector<std::string>::iterator word) {
  if (word == words.begin()) return false;
  const std::string& before = *std::prev(word);
  if (!before.starts_with("--") || before.find('=') != std::string::npos) return false;
  const config::Setting* setting = config::find_setting(config::normalized_name(before.substr(2)));
  return setting && !config::is_switch(*setting);
}

// The recipe among the words, which are left without it: its name, a script's, or `-m MODULE`.
std::string take_recipe(std::vector<std::string>& words) {
  const auto module = std::ranges::find_if(
      words, [](const std::string& word) { return word == "-m" || word == "--module"; });
  const bool is_module = module != words.end() && module + 1 != words.end();
  auto found = is_module ? module + 1 : std::ranges::find_if(words, is_recipe);
  if (is_module && *found == "--" && found + 1 != words.end()) ++found;
  while (!is_module && found != words.end() && is_value(words, found)) {
    found = std::find_if(found + 1, words.end(), is_recipe);
  }
  if (found == words.end()) return "";
  const std::string program = *found;
  auto first = is_module ? module : found;
  if (first != words.begin() && *std::prev(first) == "--") --first;  // before a program's name
  words.erase(first, found + 1);
  return recipe_of(program, is_module);
}

config::Settings settings_of(const config::Sources& sources,
                             const std::vector<config::Given>& own) {
  config::Settings settings = config::resolve(sources);
  for (const config::Given& given : own) config::assign(given, settings.config);
  return settings;
}

}  // namespace

int run_plan(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}{}", kUsage, config::flags_help(config::plan_settings_table(), help_columns()));
    return 0;
  }
  config::SplitFlags flags = config::split_command_flags(config::plan_settings_table(), "plan",
                                                         with_named_model(arguments));
  const std::string name = take_recipe(flags.others);
  config::Sources sources{.recipe = name,
                          .flags = flags.others,
                          .environment = process_environment(),
                          .flags_are_mixed = true,
                          .use_default_file = true};
  config::Settings settings = settings_of(sources, flags.own.given);
  // Once more with the number of ranks, which a ds_config's batch sizes have to fit.
  sources.world_size = planned_world_size(settings.config);
  settings = settings_of(sources, flags.own.given);
  config::require_model(settings);
  print_warnings(flags.own.warnings);
  print_warnings(settings.warnings);
  const PlanReport report = with_sources(settings, [&] { return plan_report(settings.config); });
  fmt::print("{}", report.text);
  return report.fits ? 0 : 1;
}

}  // namespace strata::cli
