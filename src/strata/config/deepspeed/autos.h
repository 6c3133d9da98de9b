// What each "auto" of a ds_config takes its value from, which is told before a run. Owns: that
// answer. Never: the value; an "auto" is left to the flags.
#pragma once

#include <string>
#include <vector>

#include "strata/config/deepspeed/file.h"

namespace strata::config {

// An "auto" of the file and the settings whose values it takes; none: nothing here depends on it.
struct DsAuto {
  std::string source;                      // "ds_config.json:12 (gradient_clipping)"
  std::vector<std::string> settings = {};  // max_grad_norm
  std::string meaning = {};                // "0": of one that is no setting
};

std::vector<DsAuto> autos_of(const DsFile& file);

}  // namespace strata::config
