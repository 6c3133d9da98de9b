// How a quantised matrix is stored in memory: the formats of bitsandbytes, MXFP4, fp8, and whole
// numbers in groups, as one flat array of bytes a matrix. Owns: names, sizes and offsets. Never:
// arithmetic, tensors; includes nothing of libtorch, so that a memory plan can ask for sizes.
//
// Source: bitsandbytes 0.50 functional.py (QuantState, create_dynamic_map), nn/modules.py; Open
// Compute Project, Microscaling Formats (MX) 1.0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "strata/ops/element.h"

namespace strata::ops::quant {

enum class Kind {
  kNf4,    // 4 bits, quantiles of the normal distribution (QLoRA, Dettmers et al. 2023)
  kFp4,    // 4 bits, 2 of exponent and 1 of mantissa
  kInt8,   // LLM.int8(): signed bytes and one scale a row (Dettmers et al. 2022)
  kMxfp4,  // 4 bits, 2 of exponent and 1 of mantissa; a power of two for 32 (gpt-oss' experts)
  kFp8,    // 8 bits, 4 of exponent and 3 of mantissa; a scale for a tile of the matrix
  kInts,   // whole numbers of 4 or 8 bits; a scale for a group of a row (GPTQ, AWQ)
};

// What is so of whole numbers alone.
struct IntParts {
  int64_t bits = 4;  // of a code: 4 or 8
  // The type in which scales are stored, and to which every value is rounded.
  Element scale_type = Element::kFloat;
  bool has_zeros = false;  // codes that mean zero, one a scale; else the middle one of all does
  bool has_order = false;  // of each column its group; else one group comes after the other
  bool operator==(const IntParts&) const = default;
};

struct Format {
  Kind kind = Kind::kNf4;
  // Elements that share a scale, counted row-major; columns of a tile in fp8, of a group of whole
  // numbers. Not of int8.
  int64_t block = 64;
  bool nested = false;    // double quantisation: the scales are quantised to 8 bits; 4 bits only
  int64_t tile_rows = 1;  // fp8 only
  IntParts ints = {};     // whole numbers only
  bool operator==(const Format&) const = default;
};

// Elements of a row that share a power of two in MXFP4, and their format.
inline constexpr int64_t kMxfp4Block = 32;
inline constexpr Format kMxfp4Format{Kind::kMxfp4, kMxfp4Block, false, 1};

inline constexpr Format fp8_format(int64_t tile_rows, int64_t tile_columns) {
  return {Kind::kFp8, tile_columns, false, tile_rows};
}

// `group`: columns of a row that share a scale; the last group of a row may be short.
inline constexpr Format int_format(int64_t group, const IntParts& parts) {
  return {Kind::kInts, group, false, 1, parts};
}

// Blocks of scales that share a second-level scale.
inline constexpr int64_t kNestedBlock = 256;

// Whether a run may quantise weights to it on the way in; else files hold them so.
inline constexpr bool is_of_bitsandbytes(const Format& format) {
  return format.kind != Kind::kMxfp4 && format.kind != Kind::kFp8 && format.kind != Kind::kInts;
}

// "nf4", "fp4", "int8", "mxfp4", "fp8" or "integers".
std::string_view name_of(Kind kind);
// The inverse for bitsandbytes' kinds. ConfigError for anything else, which names `setting`.
Kind parse_kind(std::string_view name, std::string_view setting);
// ConfigError unless `block` is a power of two from 32 to 4096.
void check_block(int64_t block, std::string_view setting);

// Where the parts of a tensor [rows, columns] lie in its bytes. Every part starts at a multiple of
// 4 bytes; absent parts have no elements.
struct Layout {
  int64_t num_codes = 0;   // bytes at offset 0: two elements a byte, the first in the high half, in
                           // MXFP4 and whole numbers in the low one; rows of the latter are bytes
  int64_t num_scales = 0;  // 4 bits: blocks; int8: rows; fp8: tiles, row by row of them; whole
                           // numbers: groups, row by row
  int64_t num_nested = 0;  // second-level scales
  int64_t scales = 0;      // offset: fp32, or a byte each with `nested` and in MXFP4; whole
                           // numbers: of their own type
  int64_t nested = 0;      // offset: fp32 second-level scales
  int64_t mean = 0;        // offset: one fp32 that is added to the scales, with `nested`
  int64_t zeros = 0;       // offset: int8 a scale, what means zero less the middle of all codes
  int64_t order = 0;       // offset: int32 a column
  int64_t total = 0;       // bytes
};
Layout layout_of(const Format& format, int64_t rows, int64_t columns);

// Bytes of a quantised tensor, all parts.
inline int64_t stored_bytes(const Format& format, int64_t rows, int64_t columns) {
  return layout_of(format, rows, columns).total;
}

// For messages: "nf4, blocks of 64, double".
std::string describe(const Format& format);

}  // namespace strata::ops::quant
