// Conversions between fp32 and a 16-bit type inside one buffer, so that a value can travel in the
// narrow type and be used in the wide one without a second buffer. Never: arithmetic.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::shard {

// bf16 or fp16.
bool is_16_bit(at::ScalarType type);

// The second half of an fp32 buffer [n], seen as [n] of a 16-bit type: where what is to be widened
// must lie.
at::Tensor narrow_tail(const at::Tensor& buffer, at::ScalarType type);
// The first half of it, seen likewise: where narrow_in_place() leaves its result.
at::Tensor narrow_head(const at::Tensor& buffer, at::ScalarType type);

// Elements that are converted at a time beside such a buffer, so that what they pass through stays
// in the processor's cache, or is launched for as a whole on a GPU.
int64_t conversion_block(at::Device device);

// Makes fp32 values of the 16-bit ones in the buffer's tail. Requires: a contiguous buffer.
void widen_in_place(at::Tensor buffer, at::ScalarType type);
// Leaves the values rounded to the 16-bit type in the buffer's head; the rest is undefined.
void narrow_in_place(at::Tensor buffer, at::ScalarType type);

}  // namespace strata::shard
