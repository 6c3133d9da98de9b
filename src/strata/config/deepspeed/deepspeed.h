// A ds_config becomes settings: `auto` is left to the flags, ZeRO stages, offload, precision,
// optimizer, scheduler and batch sizes become what they mean here. Owns: these meanings. Never: the
// form of the file (file.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/deepspeed/autos.h"
#include "strata/config/merge.h"

namespace strata::config {

// Adds what the file named by the setting `deepspeed` stands for, at the rank of a file, and what a
// launch with DeepSpeed implies. `world_size` 0: not known yet, the batch identity is left open.
// Throws ConfigError: a value that contradicts a flag or the environment, "auto" without a rule,
// what DeepSpeed refuses, what is not supported. One warning for each reason why keys do nothing.
std::vector<DsAuto> translate_deepspeed(Merge& merge, int world_size,
                                        std::vector<std::string>& warnings);

}  // namespace strata::config
