#include "strata/checkpoint/finite_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <ATen/ATen.h>

#include "strata/base/file.h"

namespace strata::checkpoint {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 18;

bool is_finite_piece(const at::Tensor& some) {
  // A sum is finite only if all are; one that overflows is looked at closely.
  if (std::isfinite(some.sum(at::kFloat).item<float>())) return true;
  // libtorch has no such test of 8-bit numbers.
  const at::Tensor values = some.element_size() == 1 ? some.to(at::kFloat) : some;
  return at::isfinite(values).all().item<bool>();
}

}  // namespace

bool is_finite(const at::Tensor& values) {
  if (!at::isFloatingType(values.scalar_type())) return true;
  const at::Tensor flat = values.reshape({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, flat.numel() - begin);
    if (!is_finite_piece(flat.narrow(0, begin, count))) return false;
  }
  return true;
}

bool is_finite(std::span<const std::byte> mapped, at::ScalarType type) {
  if (!at::isFloatingType(type)) return true;
  const size_t element = at::elementSize(type);
  const auto numel = static_cast<int64_t>(mapped.size() / element);
  // Aligned, as arithmetic wants it.
  const at::Tensor piece = at::empty({std::min(kElementsAtOnce, numel)}, at::dtype(type));
  for (int64_t begin = 0; begin < numel; begin += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, numel - begin);
    const auto bytes =
        mapped.subspan(static_cast<size_t>(begin) * element, static_cast<size_t>(count) * element);
    std::memcpy(piece.mutable_data_ptr(), bytes.data(), bytes.size());
    forget_pages(bytes);
    if (!is_finite_piece(piece.narrow(0, 0, count))) return false;
  }
  return true;
}

}  // namespace strata::checkpoint
