// The largest that the process ever held, as the system counts it (base/resident_memory.h has what
// it holds now). Never: what it is for; the account of memory/allocator.h has that.
#pragma once

#include <cstdint>

namespace strata::memory {

// Pages of this process in memory at the largest since the start or the last reset. 0 where the
// system does not say.
int64_t peak_resident_bytes();

// What the first step adds besides tensors and packing buffers: code of libtorch that is read for
// the first time, stacks and small blocks of threads. Measured: 2 MB, with 16-bit weights 12.
inline constexpr int64_t kWarmUpBytes = 7'000'000;

// The largest starts anew at what is resident now. False where the system does not allow it.
bool reset_peak_resident();

}  // namespace strata::memory
