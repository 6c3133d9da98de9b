// The generation of a GPU, as CUDA tells it. Never: a kernel.
#include <cuda_runtime.h>

#include "strata/ops/compute_capability.h"

namespace strata::ops::cuda {

int compute_capability_major(int device) {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess) {
    return major;
  }
  (void)cudaGetLastError();  // or the next launch would report it
  return 0;
}

}  // namespace strata::ops::cuda
