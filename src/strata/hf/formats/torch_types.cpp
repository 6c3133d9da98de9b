#include "strata/hf/formats/torch_types.h"

namespace strata::hf {
namespace {

struct Names {
  DType dtype;
  std::string_view torch;
  std::string_view storage;
};

constexpr Names kNames[] = {
    {DType::kF64, "float64", "DoubleStorage"},
    {DType::kF32, "float32", "FloatStorage"},
    {DType::kF16, "float16", "HalfStorage"},
    {DType::kBF16, "bfloat16", "BFloat16Storage"},
    {DType::kF8E4M3, "float8_e4m3fn", ""},
    {DType::kF8E5M2, "float8_e5m2", ""},
    {DType::kI64, "int64", "LongStorage"},
    {DType::kI32, "int32", "IntStorage"},
    {DType::kI16, "int16", "ShortStorage"},
    {DType::kI8, "int8", "CharStorage"},
    {DType::kU64, "uint64", ""},
    {DType::kU32, "uint32", ""},
    {DType::kU16, "uint16", ""},
    {DType::kU8, "uint8", "ByteStorage"},
    {DType::kBool, "bool", "BoolStorage"},
};

}  // namespace

std::string_view torch_storage_of(DType dtype) {
  for (const Names& names : kNames) {
    if (names.dtype == dtype) return names.storage;
  }
  return "";
}

std::string_view torch_dtype_of(DType dtype) {
  for (const Names& names : kNames) {
    if (names.dtype == dtype) return names.torch;
  }
  return "";
}

std::optional<DType> dtype_of_torch_storage(std::string_view name) {
  for (const Names& names : kNames) {
    if (!name.empty() && names.storage == name) return names.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_of_torch_dtype(std::string_view name) {
  for (const Names& names : kNames) {
    if (names.torch == name) return names.dtype;
  }
  return std::nullopt;
}

}  // namespace strata::hf
