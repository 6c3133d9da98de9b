// Values that a file holds in another form, decoded on their way into memory. Owns: the pieces, and
// their types. Never: the arithmetic (hf/fp8.h, hf/int_values.h), which parameters there are.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

namespace strata::shard {

// Writes the values from an element on. Threads: any number at a time.
using Decode = std::function<void(int64_t from, std::span<float> values)>;

// All of `out`, flat, of any floating type and on any device, rounded once. After each piece
// `forget` is told its first element and their number. Memory: beside `out`,
// decoding_buffer_numel() elements of fp32.
void decode_into(const at::Tensor& out, const Decode& decode,
                 const std::function<void(int64_t from, int64_t count)>& forget);

// 0 where `out` is decoded into at once: in host memory, fp32.
int64_t decoding_buffer_numel(const at::Tensor& out);

}  // namespace strata::shard
