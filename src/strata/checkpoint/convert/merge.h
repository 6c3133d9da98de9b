// An adapter folded into its base model, weight by weight, as PEFT's merge_and_unload computes it.
// Owns: that arithmetic. Never: formats (saved_state.h, export_files.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/file_system.h"
#include "strata/checkpoint/convert/decoded_state.h"
#include "strata/checkpoint/convert/saved_state.h"

namespace strata::checkpoint {

struct MergeOptions {
  uint64_t max_shard_size = uint64_t{50} << 30;
  std::optional<hf::DType> weight_type = {};  // of the result; nothing: the base's
  FileSystem* files = &real_file_system();
  const DecodedState* decoded = nullptr;  // the base, where its weights are values of codes
};

// Writes base + LoRA or DoRA branches (rank and alpha patterns, rsLoRA, biases; from a base without
// what "pissa", "olora" and "loftq" took off it) or VeRA's, or base times the factors of (IA)^3,
// with modules_to_save in place of the base's weights, as a model folder `out`, which must be new
// or empty; with the tokenizer beside the adapter, whose ids of begin, end and padding it takes.
// `adapter` may be a PEFT folder or the checkpoint of a run, saved at any world size. W + scale * B
// A is computed in fp32 and rounded once. Memory: the largest tensor, and fp32 copies of some of
// its rows. Errors: ConfigError for other methods, for an adapter of another base, which is named,
// and over codes for one of "pissa" or "loftq", which no such base can have had (that of "olora"
// was quantised again in training, and is here); FormatError, with nothing written, for NaN or
// infinity in the result.
std::vector<std::string> merge_adapter(SavedState& base, SavedState& adapter,
                                       const std::filesystem::path& out,
                                       const MergeOptions& options);

}  // namespace strata::checkpoint
