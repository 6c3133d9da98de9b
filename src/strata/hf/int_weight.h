// Weights that a checkpoint holds in whole numbers (int_form.h): which tensors belong to one, and
// what a copy in plain weights would hold. Never: values (int_values.h).
// Source: GPTQModel and AutoAWQ, pack() of their layers; compressed-tensors pack_quantized.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "strata/hf/int_form.h"
#include "strata/hf/model_folder.h"

namespace strata::hf {

// Words of 32 bits hold the first code in the lowest bits. The pointers are into the folder's
// tables. Of a matrix [rows, columns] whose rows have so many groups:
//             codes                     scales          zeros                     order
//   GPTQ      [columns / per, rows]     [groups, rows]  [groups, rows / per]      [columns]
//   AWQ       [columns, rows / per]     [groups, rows]  [groups, rows / per]
//   packed    [rows, columns / per]     [rows, groups]  [rows / per, groups]      [columns]
struct IntWeight {
  // AWQ: where in a word the code of each of 8 rows lies.
  static constexpr std::array<int64_t, 8> kAwqPlaces = {0, 4, 1, 5, 2, 6, 3, 7};

  IntLayout layout;
  int64_t bits;
  bool zeros_are_less;       // by one
  const TensorInfo* codes;   // I32
  const TensorInfo* scales;  // F32, BF16 or F16
  const TensorInfo* zeros;   // I32; in older files of compressed-tensors I8 [rows, groups]; or null
  const TensorInfo* order;   // I32, of each column its group; null: one group after the other
  const TensorInfo* shape;   // packed: I64 or I32 [2]; else null
  int64_t rows, columns;
  int64_t group, groups;  // columns that share a scale; their number

  int64_t per_word() const { return 32 / bits; }
  int64_t middle() const { return int64_t{1} << (bits - 1); }  // of all codes
  // The type of a copy in plain weights: code less zero times scale is rounded to it.
  DType dtype() const { return scales->dtype; }
  std::vector<int64_t> dims() const { return {rows, columns}; }
  std::vector<const TensorInfo*> parts() const;
};

// The weight NAME ("...q_proj.weight"), or nothing where a tensor has that name or config.json
// announces no such weights. Errors: as read_int_form(); FormatError for parts that are missing or
// do not fit.
std::optional<IntWeight> find_int_weight(const ModelFolder& folder, const std::string& name);

// The same for whoever only looks: nothing, too, where it could not be read.
std::optional<IntWeight> find_readable_ints(const ModelFolder& folder, const std::string& name);

// The names of all such weights that can be read, and what a folder's tensors are called where each
// takes the place of its parts. Sorted.
std::set<std::string> int_weights(const ModelFolder& folder);
std::vector<std::string> names_of_copy(const ModelFolder& folder);

// Whether it is a bias of zeros beside codes, which GPTQ's programs have also written where the
// model's layer has none.
bool is_void_bias(const ModelFolder& folder, const std::string& name);

}  // namespace strata::hf
