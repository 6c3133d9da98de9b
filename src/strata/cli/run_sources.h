// Where a subcommand's settings come from: its arguments and this process's environment. Owns: the
// variable that hands the launcher's flags to its ranks. Never: reads files.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/base/error.h"
#include "strata/config/flags.h"
#include "strata/config/resolve.h"

namespace strata::cli {

// Every variable of this process.
config::Environment process_environment();

// For the recipe in a rank: its flags, and the flags and the recipe that `strata launch` was given.
config::Sources rank_sources(const std::vector<std::string>& flags, const std::string& recipe);

// Hands launch flags on: the variable's name and its value, a JSON list.
inline constexpr const char* kLaunchFlagsVariable = "STRATA_LAUNCH_FLAGS";
std::string launch_flags_value(const std::vector<std::string>& flags);
// The recipe's name, of which a subcommand runs several.
inline constexpr const char* kRecipeVariable = "STRATA_RECIPE";

// A launch line of `strata COMMAND`. Throws ConfigError where it names nothing to run.
config::LaunchLine read_launch_line(const std::vector<std::string>& arguments,
                                    std::string_view command);

// The setting `recipe` for what `strata launch` is asked to start. Public guides name their own
// script; a recipe stands in for it, which is said. Throws ConfigError for what none can stand in
// for. `is_module`: the program is Python's `-m trl.scripts.sft`, of which the last word counts.
std::string recipe_of(const std::string& program, bool is_module = false);
std::string recipe_of(const config::LaunchLine& line);
// ConfigError for a script or command that trains in another way (trl grpo, run_mlm.py): sft in its
// place would be another model.
void require_own_method(const std::string& program, bool is_module = false);
// The subcommand that runs it.
std::string command_of_recipe(const std::string& recipe);
// Whether the word names a recipe or a script.
bool is_recipe(const std::string& word);

// Does what reads a model's config.json; what it finds wrong there names the model, too. Whoever
// reads the file's content has no place for its path.
template <typename Work>
auto naming_model(const std::string& model, Work&& work) {
  constexpr std::string_view kFile = "config.json: ";
  const auto named = [&](const std::string& message) {
    if (model.empty() || !message.starts_with(kFile)) return message;
    if (model.ends_with(".json")) return model + message.substr(kFile.size() - 2);
    return model + (model.ends_with('/') ? "" : "/") + message;
  };
  try {
    return work();
  } catch (const ConfigError& error) {
    throw ConfigError("{}", named(error.what()));
  } catch (const FormatError& error) {
    throw FormatError("{}", named(error.what()));
  }
}

// Does what needs the settings; what it finds wrong with one of them names the place it was given.
template <typename Work>
auto with_sources(const config::Settings& settings, Work&& work) {
  const config::ModelConfig& model = settings.config.model;
  try {
    return naming_model(
        model.model_name_or_path.empty() ? model.config_name : model.model_name_or_path, work);
  } catch (const ConfigError& error) {
    throw ConfigError("{}", config::at_its_source(settings, error.what()));
  }
}

// "warning: ..." lines on standard error.
void print_warnings(const std::vector<std::string>& warnings);

// The flags of a subcommand with a table of its own; of values that a later one replaced is told.
std::vector<config::Given> read_command_flags(std::span<const config::Setting> table,
                                              std::string_view command,
                                              const std::vector<std::string>& arguments);
// The same with words among the flags, which are paths.
struct FlagsAndPaths {
  std::vector<config::Given> given;
  std::vector<std::string> paths;
};
FlagsAndPaths read_command_flags_and_paths(std::span<const config::Setting> table,
                                           std::string_view command,
                                           const std::vector<std::string>& arguments);

}  // namespace strata::cli
