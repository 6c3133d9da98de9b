// The block "optimizer" of a ds_config as settings of a run.
#pragma once

#include "strata/config/deepspeed/file.h"
#include "strata/config/merge.h"

namespace strata::config {

// Throws ConfigError for an update rule that does not exist here, and where a flag says another.
void translate_optimizer(const DsFile& file, Merge& merge);

}  // namespace strata::config
