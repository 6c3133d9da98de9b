// A Hugging Face folder whose weights bitsandbytes stored as codes, seen as plain weights. Never:
// writing.
#pragma once

#include <filesystem>
#include <memory>

#include "strata/checkpoint/saved_state.h"

namespace strata::checkpoint {

// Whether the folder's config.json has a quantization_config.
bool is_quantized_folder(const std::filesystem::path& folder);

// Tensors decoded to the type they had before; scales and tables are left out.
// Throws as models::stored_quantization() and hf::find_quantized_weight() do.
std::unique_ptr<SavedState> open_decoded_state(const std::filesystem::path& folder);

}  // namespace strata::checkpoint
