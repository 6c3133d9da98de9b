// Where a subcommand's settings come from: its arguments and this process's environment. Owns: the
// variable that hands the launcher's flags to its ranks. Never: reads files.
#pragma once

#include <string>
#include <vector>

#include "strata/config/resolve.h"

namespace strata::cli {

// Every variable of this process.
config::Environment process_environment();

// For the recipe in a rank: its flags, and the flags that `strata launch` was given.
config::Sources rank_sources(const std::vector<std::string>& flags);

// Hands launch flags on: the variable's name and its value, a JSON list.
inline constexpr const char* kLaunchFlagsVariable = "STRATA_LAUNCH_FLAGS";
std::string launch_flags_value(const std::vector<std::string>& flags);

// What `strata launch` is asked to start. Public guides name their own script; the recipe stands in
// for it, which is said. Throws ConfigError for what no recipe can stand in for.
void require_recipe(const std::string& program);

// "warning: ..." lines on standard error.
void print_warnings(const std::vector<std::string>& warnings);

}  // namespace strata::cli
