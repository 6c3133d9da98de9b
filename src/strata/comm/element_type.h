// The types of tensors that ranks add up, as the arithmetic on raw memory names them. Never: sums.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/base/error.h"
#include "strata/comm/rank_fold.h"

namespace strata::comm {

inline Element element_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return Element::kFloat64;
    case at::kFloat:
      return Element::kFloat32;
    case at::kBFloat16:
      return Element::kBfloat16;
    case at::kHalf:
      return Element::kFloat16;
    case at::kLong:
      return Element::kInt64;
    case at::kInt:
      return Element::kInt32;
    case at::kByte:
      return Element::kUint8;
    default:
      throw InternalError(
          "collective: found a sum of {}, expected a float or integer type; "
          "report this as a bug",
          at::toString(type));
  }
}

}  // namespace strata::comm
