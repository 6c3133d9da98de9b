// Memory of the host that a GPU copies from and to by itself. Owns: those calls of CUDA. Never:
// tensors, headers of CUDA. Only in builds with CUDA.
#pragma once

#include <cstddef>

namespace strata::shard {

// Null where the system has none left that it would lock.
void* take_locked_memory(size_t size_bytes);
void give_back_locked_memory(void* memory);

}  // namespace strata::shard
