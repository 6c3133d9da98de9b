// The size of a model as transformers' get_memory_footprint() counts it. Never: what a rank really
// holds (memory/).
#pragma once

#include <cstdint>

#include "strata/models/model.h"

namespace strata::models {

// Bytes of every weight once, as it rests, over all shards, and of the reference's buffers. Of a
// quantised matrix the codes alone count, as in the reference, where scales are no parameters.
int64_t memory_footprint_bytes(Model& model);

// Bytes of the scales of quantised matrices, which that leaves out.
int64_t scale_bytes(Model& model);

// Elements of a parameter as PEFT counts them: a 4-bit matrix by its bytes, two codes in each.
int64_t counted_elements(const nn::Parameter& parameter);

}  // namespace strata::models
