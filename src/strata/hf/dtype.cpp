#include "strata/hf/dtype.h"

#include <array>

#include "strata/base/error.h"

namespace strata::hf {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  size_t size_bytes;
};

// In layout order, smallest first (the order of the reference implementation's enumeration).
constexpr std::array<Row, 15> kRows = {{
    {DType::kBool, "BOOL", 1},
    {DType::kU8, "U8", 1},
    {DType::kI8, "I8", 1},
    {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kI16, "I16", 2},
    {DType::kU16, "U16", 2},
    {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},
    {DType::kI32, "I32", 4},
    {DType::kU32, "U32", 4},
    {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},
    {DType::kI64, "I64", 8},
    {DType::kU64, "U64", 8},
}};

size_t place_of(DType dtype) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].dtype == dtype) return i;
  }
  throw InternalError("dtype: found the value {}, expected a listed type", static_cast<int>(dtype));
}

}  // namespace

size_t size_of(DType dtype) { return kRows[place_of(dtype)].size_bytes; }

std::string_view name_of(DType dtype) { return kRows[place_of(dtype)].name; }

int layout_rank(DType dtype) { return static_cast<int>(kRows.size() - 1 - place_of(dtype)); }

std::optional<DType> find_dtype(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

DType parse_dtype(std::string_view name) {
  if (const auto dtype = find_dtype(name)) return *dtype;
  throw FormatError(
      "dtype: found \"{}\", expected one of F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, "
      "I32, I16, I8, U64, U32, U16, U8, BOOL; convert the tensor",
      name);
}

}  // namespace strata::hf
