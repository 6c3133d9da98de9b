// Sizes of a model for which config.json has two names, as older families do. Owns: which counts.
// Never: defaults.
#pragma once

#include <cstdint>

#include "strata/models/config_reader.h"

namespace strata::models {

// The family's own name for a size, and the one that configurations of all families share.
struct SizeNames {
  const char* own;
  const char* shared;

  // The name under which the file gives the size; of two the shared one counts, as in transformers.
  const char* said(const ConfigReader& config) const { return config.has(shared) ? shared : own; }
};

}  // namespace strata::models
