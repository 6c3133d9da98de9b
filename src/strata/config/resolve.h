// From all sources to one RunConfig: defaults < files < environment < launch flags < flags. Owns:
// precedence, contradictions, the origin of every value. Never: reading argv or the environment
// itself (cli/), printing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "strata/config/environment_variables.h"
#include "strata/config/run_config.h"
#include "strata/config/value.h"

namespace strata::config {

struct Sources {
  std::string recipe = {};                     // the command's; a flag --recipe wins
  std::vector<std::string> flags = {};         // of the recipe
  std::vector<std::string> launch_flags = {};  // of `strata launch`, before the recipe's name
  std::string launch_command = "launch";       // the subcommand that was given them, for messages
  Environment environment = {};
  int world_size = 0;            // ranks of the run; 0: not known yet (a ds_config may need it)
  bool flags_are_mixed = false;  // `flags` may hold the launcher's too (`strata config show`)
  // Read accelerate's default file where no other is named, as its launcher does (not with --cpu).
  bool use_default_file = false;
};

struct Settings {
  RunConfig config;
  // Of every setting that is not at its plain default, by the table's name.
  std::map<std::string, Origin> origins;
  // One line each; cli/ prints them once per run.
  std::vector<std::string> warnings;
  // What each "auto" of a ds_config stands for, one line each.
  std::vector<std::string> autos;

  // "--max_steps", "run.yaml:3" or "default".
  const std::string& source_of(const std::string& name) const;
};

// Reads every source, merges and checks. Throws ConfigError (exit code 2) naming the source.
Settings resolve(const Sources& sources);

// What was found wrong later, as with the model in sight: "NAME: found ..." with the place where
// the setting NAME was given instead of the name alone. Other texts stay as they are.
std::string at_its_source(const Settings& settings, const std::string& message);

// One model, by its folder or by its config.json. Throws ConfigError.
void require_model(const Settings& settings);

// What a training run cannot do without: a model and a data set. Throws ConfigError.
void require_runnable(const Settings& settings);

}  // namespace strata::config
