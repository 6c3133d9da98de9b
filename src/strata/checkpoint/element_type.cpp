#include "strata/checkpoint/element_type.h"

#include <utility>

#include "strata/base/error.h"

namespace strata::checkpoint {
namespace {

using hf::DType;

constexpr std::pair<DType, at::ScalarType> kTypes[] = {{DType::kF64, at::kDouble},
                                                       {DType::kF32, at::kFloat},
                                                       {DType::kF16, at::kHalf},
                                                       {DType::kBF16, at::kBFloat16},
                                                       {DType::kF8E4M3, at::kFloat8_e4m3fn},
                                                       {DType::kF8E5M2, at::kFloat8_e5m2},
                                                       {DType::kI64, at::kLong},
                                                       {DType::kI32, at::kInt},
                                                       {DType::kI16, at::kShort},
                                                       {DType::kI8, at::kChar},
                                                       {DType::kU64, at::kUInt64},
                                                       {DType::kU32, at::kUInt32},
                                                       {DType::kU16, at::kUInt16},
                                                       {DType::kU8, at::kByte},
                                                       {DType::kBool, at::kBool}};

}  // namespace

DType file_type_of(at::ScalarType type) {
  for (const auto& [file, memory] : kTypes) {
    if (memory == type) return file;
  }
  throw InternalError("element type {}: found a tensor of it, expected one that files can hold",
                      c10::toString(type));
}

at::ScalarType memory_type_of(DType dtype) {
  for (const auto& [file, memory] : kTypes) {
    if (file == dtype) return memory;
  }
  throw InternalError("element type {}: found no type of libtorch for it", hf::name_of(dtype));
}

}  // namespace strata::checkpoint
