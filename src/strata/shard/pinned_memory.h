// Host memory that a GPU copies from and to without the host. libtorch's allocator for it rounds
// every block up to a power of two, which is for buffers that come and go; homes, kept inputs and
// the copies of a save stay, and are half of a machine's memory. Owns: that allocation. Never:
// buffers of a transfer. Only in builds with CUDA.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::shard {

// Zeros [numel] in host memory, exactly as large. Errors: OutOfMemoryError when the system has no
// memory that it would lock.
// Memory: goes back with the last reference; copies must be over by then.
at::Tensor pinned_zeros(int64_t numel, at::ScalarType type);

// The same where that is only faster: undefined when the system has no memory that it would lock.
at::Tensor pinned_zeros_if_possible(int64_t numel, at::ScalarType type);

}  // namespace strata::shard
