// The matrices that the layers of a VeRA adapter share, for a merge. Never: what is made of them.
#pragma once

#include "strata/adapters/adapter_options.h"
#include "strata/checkpoint/convert/adapter_parts.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/nn/vera.h"

namespace strata::checkpoint {

// Those of the file, else drawn again as the run drew them; nothing where no layer has a branch of
// VeRA's. ConfigError for matrices of another size.
nn::VeraProjection projection_of(SavedState& base, SavedState& adapter, const AdapterParts& parts,
                                 const adapters::LoraOptions& settings);

}  // namespace strata::checkpoint
