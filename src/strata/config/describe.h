// The settings table for people: values with origins, help and the documentation page. Never:
// printing.
#pragma once

#include <string>

#include "strata/config/resolve.h"

namespace strata::config {

// One line per setting, "learning_rate: 0.0001  # --learning_rate": a file that --config reads.
std::string show_settings(const Settings& settings);

// The settings that a person gave, in the same form: what `config convert --to strata` writes.
std::string given_settings(const Settings& settings);

// Every setting that all ranks must have alike (settings_hash), one a line in the same form.
std::string shared_settings(const Settings& settings);

// The flags that `strata sft` or `strata launch` takes, by group, in lines of at most `columns`.
std::string flags_help(Scope scope, int columns = 100);
// The same for a subcommand with a table of its own.
std::string flags_help(std::span<const Setting> table, int columns = 100);

// docs/guide/settings.md.
std::string settings_page();

}  // namespace strata::config
