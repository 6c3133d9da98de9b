// The files that accelerate's own tools write: `accelerate config` (YAML or JSON) and `to-fsdp2`.
// Owns: their bytes and the translation between versions of the FSDP section. Never: reading
// settings from them (settings_files.h), asking (cli/).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::config {

// The bytes of yaml.safe_dump: keys sorted, nested mappings indented by two, text quoted only where
// YAML 1.1 would read something else. Nulls and empty mappings are left out, as accelerate does.
std::string accelerate_yaml(const Json& file);

// json.dumps(indent=2, sort_keys=True) and a newline; nulls and empty mappings are left out.
std::string accelerate_json(const Json& file);

// By the name's ending: .json or YAML. Written whole or not at all.
void write_accelerate_file(const std::filesystem::path& path, const Json& file);

// What `accelerate config default` writes: one machine, `num_devices` GPUs (0: the CPU).
Json default_accelerate_settings(const std::string& mixed_precision, int num_devices);

// Version 1 of the FSDP section to version 2, as accelerate's to-fsdp2. A line for each key that
// version 2 has not. ConfigError: the file has no fsdp_config, or it is of version 2 already.
Json to_fsdp2(Json file, std::vector<std::string>& warnings);

}  // namespace strata::config
