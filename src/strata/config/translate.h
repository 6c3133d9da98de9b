// Settings of the peers that are other settings here: mixed_precision, distributed_type,
// use_peft_lora and so on. Owns: what they become. Never: settings that have a field.
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"

namespace strata::config {

// Adds what the translated settings stand for, under their origin.
// Throws ConfigError where two of them, or one and a plain setting, contradict each other.
void translate(Merge& merge, std::vector<std::string>& warnings);

}  // namespace strata::config
