// Weights that a checkpoint holds in 8-bit floating point (E4M3): a tile of a matrix, a row, or all
// of it shares a scale. Owns: which tensors belong to one, and its values. Never: keeping them so,
// what config.json says (fp8_form.h).
// Source: transformers integrations/finegrained_fp8.py (Fp8Dequantize).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/hf/fp8_form.h"
#include "strata/hf/model_folder.h"

namespace strata::hf {

// The pointers are into the folder's tables.
struct Fp8Weight {
  const TensorInfo* codes;   // F8_E4M3 [..., rows, columns]
  const TensorInfo* scales;  // F32, BF16 or F16: one of each tile
  int64_t rows, columns;
  int64_t tile_rows, tile_columns;
  int64_t tiles_down, tiles_across;  // of one matrix
};

// The weight NAME, or nothing where the tensor of that name has another type or is absent.
// Errors: as read_fp8_form(); FormatError for 8 bits that config.json does not announce, and for
// scales that are missing or do not fit.
std::optional<Fp8Weight> find_fp8_weight(const ModelFolder& folder, const std::string& name);

// The same for whoever only looks: nothing, too, where it could not be read.
std::optional<Fp8Weight> find_readable_fp8(const ModelFolder& folder, const std::string& name);

// Rows and columns of such a matrix that share a scale, by config.json alone, of its first group of
// layers. Errors: as read_fp8_form().
std::array<int64_t, 2> announced_fp8_tile(const Json& model_config, int64_t rows, int64_t columns);

// Whether a tensor beside such weights says how activations or the cache would be rounded, which
// are not here.
bool is_fp8_activation_scale(std::string_view name);

// The scales of all such weights of a folder that can be read; none where its config announces
// none.
std::vector<std::string> fp8_scales(const ModelFolder& folder);

// Its scales, matrix by matrix, row by row of tiles.
std::vector<float> fp8_scales_of(const ModelFolder& folder, const Fp8Weight& weight);

// Elements [begin, begin + out.size()) of the flattened weight: code times scale, in fp32.
void read_fp8(const ModelFolder& folder, const Fp8Weight& weight, int64_t begin,
              std::span<float> out);

}  // namespace strata::hf
