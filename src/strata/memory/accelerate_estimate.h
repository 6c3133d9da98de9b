// What `accelerate estimate-memory` prints of a model, for people who compare. Owns: its table and
// its rules of thumb. Never: this program's memory; memory/plan.h has that. Source:
// accelerate 1.15, commands/estimate.py. It leaves out gradients in other types, activations and
// everything that is sharded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata::memory {

// Sizes in parameters. A layer is a block that is never split, or a module without submodules.
struct AccelerateCase {
  std::string model_name;
  int64_t num_parameters;
  int64_t largest_layer;
};

// A row for each of `dtypes`: float32, float16, int8 or int4. Errors: ConfigError for another type.
std::string accelerate_table(const AccelerateCase& c, const std::vector<std::string>& dtypes);

}  // namespace strata::memory
