// As src/strata/ops/launch.cuh, of which this takes the place here: a launch runs the kernel on the
// CPU and returns when it has ended.
#pragma once

#include <around_launch.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace strata::ops::cuda {

struct Grid {
  int64_t blocks;
  int threads;
  size_t shared_bytes = 0;
  int64_t columns = 1;
};

template <typename... Parameters, typename Stream, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, Stream stream,
            const Arguments&... arguments) {
  const emulation::AroundLaunch around(name, stream);
  const dim3 blocks{static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.columns), 1};
  emulation::run(name, blocks, static_cast<unsigned>(grid.threads), grid.shared_bytes,
                 [&] { kernel(arguments...); });
}

inline float* dynamic_shared_memory() { return emulation::dynamic_shared_memory(); }

}  // namespace strata::ops::cuda
