// Sums and maxima of several ranks' values, always in the order of the ranks. Owns: that
// arithmetic on raw memory. Never: where the values come from; libtorch.
#pragma once

#include <cstddef>
#include <span>

namespace strata::comm {

enum class Element { kFloat64, kFloat32, kBfloat16, kFloat16, kInt64, kInt32, kUint8 };
enum class Fold { kSum, kMax };

size_t size_of(Element element);

// out[i] = inputs[0][i] + inputs[1][i] + ... for `count` elements, added from the left. 16-bit
// floats are added in fp32 and rounded once. `out` may be one of the inputs, but not overlap one
// otherwise.
void fold_in_rank_order(Element element, Fold fold, std::span<const std::byte* const> inputs,
                        std::byte* out, size_t count);

}  // namespace strata::comm
