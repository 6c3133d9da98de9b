// Command-line flags as HfArgumentParser and accelerate's launcher take them: hyphen or underscore,
// `--flag value`, `--flag=value`, bare booleans, --no_flag for what is true by default, lists of
// several values. No abbreviations. Of a setting that is given twice the last counts, as for
// argparse. Errors: ConfigError with the closest known name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/config/value.h"

namespace strata::config {

struct ParsedFlags {
  std::vector<Given> given;
  std::vector<std::string> warnings;  // of values that a later one replaced
};

// The flags of the recipe (rank kFlag). A file name ending in .json, .yaml or .yml before them
// stands for --config, as for the parsers of transformers and of alignment-handbook. `command`: the
// subcommand that messages name.
ParsedFlags parse_run_flags(std::span<const std::string> arguments,
                            std::string_view command = "sft");

// Flags of launcher and recipe in any order, as `strata config show` takes them.
ParsedFlags parse_mixed_flags(std::span<const std::string> arguments,
                              std::string_view command = "sft");

bool is_settings_file(const std::string& word);

// Flags of a subcommand with a table of its own; `command` is named in messages.
ParsedFlags parse_command_flags(std::span<const Setting> table, std::string_view command,
                                std::span<const std::string> arguments);

// The same where words that belong to no flag (paths) stand before, between and after the flags:
// only a boolean is the value of a switch.
struct FlagsAndWords {
  ParsedFlags own;
  std::vector<std::string> words;
};
FlagsAndWords parse_flags_and_words(std::span<const Setting> table, std::string_view command,
                                    std::span<const std::string> arguments);

// The flags of a subcommand that takes those of a run as well: its own, and the others as written.
struct SplitFlags {
  ParsedFlags own;
  std::vector<std::string> others;
};
SplitFlags split_command_flags(std::span<const Setting> table, std::string_view command,
                               std::span<const std::string> arguments);

struct LaunchLine {
  std::vector<std::string> flags;     // as written, before the program's name
  std::vector<Given> given;           // the same, read (rank kLaunchFlag)
  std::vector<std::string> warnings;  // of values that a later one replaced
  // sft, train.py, ..., also behind "--"; empty when none was named.
  std::string program;
  std::vector<std::string> arguments;  // everything after it
};

// `command`: the subcommand that reads a launch line.
LaunchLine parse_launch_line(std::span<const std::string> arguments,
                             std::string_view command = "launch");

struct OwnFlags {
  ParsedFlags own;
  std::vector<std::string> rest;  // a launch line
};

// Takes the flags of a subcommand's own table out of a launch line, where they stand among the
// launcher's before the program's name.
OwnFlags take_own_flags(std::span<const Setting> table, std::string_view command,
                        std::span<const std::string> arguments);

// Flags of launcher or recipe without those of the named settings. A settings file before them
// becomes --config FILE.
std::vector<std::string> without_flags(std::span<const std::string> arguments,
                                       std::span<const std::string_view> names);

}  // namespace strata::config
