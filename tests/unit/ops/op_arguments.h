// What the cases of the table share: random arguments on a device, and the types and sizes that
// most ops are tried with. Never: an op.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>
#include <vector>

#include "devices.h"
#include "op_table.h"

namespace strata::ops {

inline const std::vector<at::ScalarType> kBoth = {at::kFloat, at::kBFloat16}, kFp32 = {at::kFloat};

// Of ops on single elements; odd ones leave a rest behind every wide register.
inline const std::vector<OpSize> kPlainSizes = {{1, 1},     {1, 64},   {3, 7}, {65, 24},
                                                {200, 129}, {33, 512}, {0, 8}};

// Of one device; the same values on every device.
struct Maker {
  at::ScalarType type;
  at::Device device;
  at::Tensor random(at::IntArrayRef shape, double scale = 1.0) const {
    return (at::randn(shape, at::kDouble) * scale).to(type).to(device);
  }
  at::Tensor integers(int64_t below, int64_t count) const {
    return at::randint(below, {count}, at::kLong).to(device);
  }
};

// A leaf in double on the CPU with the same values.
inline at::Tensor leaf(const at::Tensor& x) { return wide(x).clone().set_requires_grad(true); }

inline double weighted(const at::Tensor& y, const at::Tensor& dy) {
  return (wide(y) * wide(dy)).sum().item<double>();
}

inline double bytes_of(std::initializer_list<at::Tensor> tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

}  // namespace strata::ops
