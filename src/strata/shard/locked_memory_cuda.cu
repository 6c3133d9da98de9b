// Locked memory of the host, as CUDA gives it. Never: a kernel.
#include <cuda_runtime.h>

#include "strata/shard/locked_memory.h"

namespace strata::shard {

void* take_locked_memory(size_t size_bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, size_bytes, cudaHostAllocDefault) == cudaSuccess) return memory;
  (void)cudaGetLastError();  // or the next launch would report it
  return nullptr;
}

void give_back_locked_memory(void* memory) { cudaFreeHost(memory); }

}  // namespace strata::shard
