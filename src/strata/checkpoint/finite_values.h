// Whether a tensor holds NaN or infinity. Owns: the test, a small piece at a time: that of a whole
// tensor takes more memory than the tensor and is in no plan. Never: what follows from it.
#pragma once

#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

namespace strata::checkpoint {

// True for types that can hold neither. Memory: one piece, and a copy where it is not contiguous.
bool is_finite(const at::Tensor& values);

// The same of a tensor of `type` in a mapped file, at any byte; its pages are given back.
// Requires: a map of a file, whose bytes come again when they are read again.
bool is_finite(std::span<const std::byte> mapped, at::ScalarType type);

}  // namespace strata::checkpoint
