// Rotary tables for heads of q and k that are rotated before something other than attention reads
// them, such as a norm. Owns: which positions are here. Never: the rotation (rotated.h).
#pragma once

#include "strata/nn/attention/rope.h"
#include "strata/nn/batch.h"

namespace strata::nn {

// If ranks share rows, the tables of this rank's tokens, with the frequencies of whole texts.
RopeTables own_rope_tables(Rope& rope, const ForwardContext& context);

}  // namespace strata::nn
