// Whether this build has kernels and a transport for NVIDIA GPUs. What depends on it asks
// `if constexpr (kHasCuda)`: in a build without them nothing of them is linked. Never: a device.
#pragma once

namespace strata {

#ifdef STRATA_WITH_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

}  // namespace strata
