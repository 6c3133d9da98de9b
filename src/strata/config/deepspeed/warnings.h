// What a ds_config asks for in vain. Owns: the warnings, one a reason. Never: meanings
// (deepspeed.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/deepspeed/file.h"

namespace strata::config {

// `uses_files`: an offload device is nvme. Throws ConfigError for an odd bucket.
void warn_of_ineffective(const DsFile& file, bool uses_files, std::vector<std::string>& warnings);

}  // namespace strata::config
