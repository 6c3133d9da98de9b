// Starting a kernel: the one place with the launch syntax of CUDA, and the memory that a launch
// gives to a block. Seen by nvcc alone; tests/unit/cuda_kernels has another file of this name,
// which runs kernels on the CPU. Owns: no kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace strata::ops::cuda {

// Throws InternalError; defined where the compiler of the host is (launch_error_cuda.cpp).
[[noreturn]] void throw_launch_error(const char* kernel, const char* message);

struct Grid {
  int64_t blocks;
  int threads;  // of a block
  size_t shared_bytes = 0;
  int64_t columns = 1;  // blocks beside each other: blockIdx.y
};

// Enqueues `kernel` and returns. InternalError where it cannot be launched; a fault inside of it
// shows at a later call.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream,
            Arguments&&... arguments) {
  constexpr int64_t kMostBlocks = 0x7FFFFFFF, kMostColumns = 65535;
  if (grid.blocks > kMostBlocks || grid.columns > kMostColumns) {
    throw_launch_error(name, "more blocks than a grid has");
  }
  const dim3 blocks(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.columns));
  kernel<<<blocks, static_cast<unsigned>(grid.threads), grid.shared_bytes, stream>>>(
      std::forward<Arguments>(arguments)...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw_launch_error(name, cudaGetErrorString(error));
}

// Grid::shared_bytes of the block; at most 48 KiB with what a kernel names itself.
__device__ inline float* dynamic_shared_memory() {
  extern __shared__ float memory[];
  return memory;
}

}  // namespace strata::ops::cuda
