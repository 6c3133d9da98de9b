// A state as a sharded checkpoint (docs/format/checkpoint.md) for convert(): one file, as a run of
// one rank writes it. Owns: which tensors it holds, and the manifest. Never: the format's text
// (manifest.h).
#pragma once

#include <filesystem>

#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/checkpoint/convert/weight_reader.h"

namespace strata::checkpoint {

// Writes `out`/checkpoint-STEP and `out`/latest. Errors: those of writing, and of reading the
// state.
void write_strata_checkpoint(SavedState& state, const std::filesystem::path& out,
                             const ConvertOptions& options, WeightReader& reader);

}  // namespace strata::checkpoint
