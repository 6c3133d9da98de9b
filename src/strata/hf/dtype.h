// Element types of tensors in Hugging Face files. Never: arithmetic on them.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace strata::hf {

enum class DType {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};

// Bytes of one element.
size_t size_of(DType dtype);

// The name in a safetensors header: "F32", "BF16", "F8_E4M3", "BOOL".
std::string_view name_of(DType dtype);

// The inverse of name_of. Throws FormatError for anything else.
DType parse_dtype(std::string_view name);
std::optional<DType> find_dtype(std::string_view name);

// Place of the type in the order in which the reference writer lays tensors out, largest first:
// by alignment, then as the type was added to the format (U64 before I64 before F64 before F32
// ...).
int layout_rank(DType dtype);

}  // namespace strata::hf
