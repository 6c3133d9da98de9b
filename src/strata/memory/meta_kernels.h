// Shapes of libtorch operations that the blocks use and that libtorch does not define for tensors
// without data. Never: values.
#pragma once

namespace strata::memory {

// Once in a process.
void register_meta_kernels();

}  // namespace strata::memory
