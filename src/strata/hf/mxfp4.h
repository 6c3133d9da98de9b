// Weights that a checkpoint holds in MXFP4 (gpt-oss): codes of 4 bits, of which 32 share a power of
// two. Owns: which tensors belong to one, and its shape. Never: arithmetic on codes.
// Source: Open Compute Project, Microscaling Formats (MX) 1.0; transformers integrations/mxfp4.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/hf/model_folder.h"

namespace strata::hf {

// "NAME_blocks", uint8 [E, N, K / 32, 16], and "NAME_scales", uint8 [E, N, K / 32], of a weight
// [E, K, N]; the pointers are into the folder's tables.
struct Mxfp4Weight {
  const TensorInfo* blocks;
  const TensorInfo* scales;
  std::vector<int64_t> shape;  // [E, K, N]
};

// Whether config.json's quantization_config says that the folder has such weights.
bool announces_mxfp4(const Json& model_config);

// The weight NAME, or nothing where the folder has no blocks of that name. FormatError for scales
// that are missing, and for types and shapes that do not fit together.
std::optional<Mxfp4Weight> find_mxfp4_weight(const ModelFolder& folder, const std::string& name);

// The names of all blocks and scales of a model folder; none where its config announces none.
std::vector<std::string> mxfp4_parts(const ModelFolder& folder);

}  // namespace strata::hf
