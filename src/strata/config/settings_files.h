// The files that settings come from: Strata's own YAML, accelerate's configuration and its section
// fsdp_config alone. Owns: which keys each may have. Never: which source wins (resolve.h).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "strata/config/value.h"

namespace strata::config {

// Keys are the names of the settings table. Repeated or unknown keys: ConfigError with file and
// line; of unknown ones all at once, each with the closest name or what another program's key is
// called here.
std::vector<Given> read_own_file(const std::filesystem::path& path);

// As accelerate reads it, but stricter: a key that is unknown inside fsdp_config is an error too
// (accelerate ignores it). Null values and -1 processes mean "not set".
std::vector<Given> read_accelerate_file(const std::filesystem::path& path, Rank rank);

// The flag that reads a file of this kind, told by its keys: --config_file (accelerate),
// --deepspeed (a ds_config in JSON), or --config (Strata's own).
std::string flag_of_file(const std::filesystem::path& path);

// `--fsdp_config`: the keys of the section with or without the prefix fsdp_; a whole file of
// accelerate is understood too. A folder: its fsdp_config.json, fsdp_config.yaml or config.yaml.
// What begins with a brace is the text itself.
std::vector<Given> read_fsdp_config(const std::string& path_or_text);

// $HF_HOME/accelerate/default_config.yaml, by the rules of huggingface_hub; `variable`
// answers for HF_HOME, XDG_CACHE_HOME and HOME.
std::filesystem::path default_accelerate_file(
    const std::function<std::string(const std::string&)>& variable);

}  // namespace strata::config
