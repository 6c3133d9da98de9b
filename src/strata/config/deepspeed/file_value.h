// The way of a ds_config's values into settings. Owns: that a flag may not say something else.
// Never: what a key means (deepspeed.h).
#pragma once

#include <string>

#include "strata/config/deepspeed/file.h"
#include "strata/config/merge.h"

namespace strata::config {

// Gives the setting `name` the text at the rank of a file. Throws ConfigError where a flag or a
// variable gives it another one, people take the file for what runs; and where this version does
// not have the setting.
void take_value(const DsEntry& entry, const std::string& name, const std::string& text,
                Merge& merge);

}  // namespace strata::config
