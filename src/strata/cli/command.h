// The program's subcommands. Owns: dispatch and the one place where errors become text and exit
// codes. Never: the work itself.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/config/recipes.h"

namespace strata::cli {

// One row of the dispatch table (command.cpp), where recipes have theirs, too.
struct Command {
  std::string_view name;
  std::string_view summary;
  // Gets what follows the subcommand's name; returns the exit code. May throw.
  std::function<int(const std::vector<std::string>& arguments)> run;
};

// Runs the subcommand that argv names. Every error ends here: "error: ..." on standard error.
int run(int argc, char** argv);

// One file each.
int run_launch(const std::vector<std::string>& arguments);
int run_recipe(const config::RecipeRow& recipe, const std::vector<std::string>& arguments);
int run_selftest(const std::vector<std::string>& arguments);
int run_preview(const std::vector<std::string>& arguments);
int run_tokenize(const std::vector<std::string>& arguments);
int run_chat(const std::vector<std::string>& arguments);
int run_config(const std::vector<std::string>& arguments);
int run_env(const std::vector<std::string>& arguments);
int run_slurm(const std::vector<std::string>& arguments);
int run_to_fsdp2(const std::vector<std::string>& arguments);
int run_inspect(const std::vector<std::string>& arguments);
int run_convert(const std::vector<std::string>& arguments);
int run_merge_weights(const std::vector<std::string>& arguments);
int run_merge_adapter(const std::vector<std::string>& arguments);
int run_plan(const std::vector<std::string>& arguments);

// True when --help or -h is among the arguments.
bool wants_help(const std::vector<std::string>& arguments);

// How wide help may be: as the terminal, at most 100; 100 where output is no terminal.
int help_columns();

}  // namespace strata::cli
