// Rotary tables for heads of q and k that turn before something else than attention looks at them,
// such as a norm. Owns: which positions are here. Never: the rotation (rotated.h).
#pragma once

#include "strata/nn/attention/rope.h"
#include "strata/nn/batch.h"

namespace strata::nn {

// Where ranks share rows, of this rank's tokens; the frequencies are those of the whole texts.
RopeTables own_rope_tables(Rope& rope, const ForwardContext& context);

}  // namespace strata::nn
