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

// The same of what the launcher says of precision, ZeRO stage and the type of saved weights: before
// a DeepSpeed file is read, which may not say something else.
void translate_launcher_words(Merge& merge);

// Where the number of ranks that share rows comes from: accelerate has two names for it, and writes
// 1 for the one that is not meant. Null: neither was given.
const Given* given_sharers(const Merge& merge);

}  // namespace strata::config
