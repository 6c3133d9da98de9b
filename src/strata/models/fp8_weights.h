// Which weights of a model rest in the 8 bits that its files hold them in. Owns: the choice, and
// the text in which ranks tell each other. Never: arithmetic, loading, files (hf/fp8.h).
#pragma once

#include <array>
#include <map>
#include <string>

#include "strata/hf/model_folder.h"
#include "strata/models/model.h"

namespace strata::models {

// Matrices in fp8 by name, and the rows and columns that share a scale.
using Fp8Tiles = std::map<std::string, std::array<int64_t, 2>>;

// The tiles of a folder. Errors: as hf::find_fp8_weight().
Fp8Tiles fp8_tiles(const hf::ModelFolder& folder);

// What config.json says of files that are not there: linear layers but those that it excepts.
Fp8Tiles announced_fp8_tiles(Model& model, const Json& model_config);

std::string text_of(const Fp8Tiles& tiles);
Fp8Tiles parse_fp8_tiles(const std::string& text);

// Marks the frozen ones among weights of linear layers, so that they rest, travel and are gathered
// as they are in the file, and are decoded for each product, to values that were `type` on the way.
// Vocabularies, weights that train or that two modules use stay plain. Call when quantize_base()
// would be called.
void keep_fp8(Model& model, const Fp8Tiles& tiles, at::ScalarType type);

}  // namespace strata::models
