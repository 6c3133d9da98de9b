// Sizes of a model with an adapter, as PEFT and transformers count them. Never: what a rank really
// holds (memory/).
#pragma once

#include <cstdint>
#include <string>

#include "strata/adapters/lora.h"

namespace strata::adapters {

// "trainable params: 2,048 || all params: 8,752 || trainable%: 23.4004", counted as PEFT counts:
// base copies of modules_to_save included, tied weights once.
std::string trainable_parameters_line(models::Model& model);

// Bytes of the buffers that PEFT registers for an adapter: VeRA's matrices once, and the values
// that rows of single tokens had in the base. get_memory_footprint() counts them beside the
// parameters.
int64_t buffer_bytes(const LoraAdapter& adapter);

}  // namespace strata::adapters
