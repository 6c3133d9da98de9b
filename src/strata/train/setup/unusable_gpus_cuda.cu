// What CUDA's runtime says of its driver. Never: opens a device, a kernel.
#include <cuda_runtime_api.h>

#include "strata/train/setup/unusable_gpus.h"

namespace strata::train {

UnusableGpus answers_of_cuda() {
  UnusableGpus answers{.cuda_of_program = CUDART_VERSION};
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    answers.refusal = cudaGetErrorString(error);
    (void)cudaGetLastError();
  }
  if (cudaDriverGetVersion(&answers.cuda_of_driver) != cudaSuccess) answers.cuda_of_driver = 0;
  return answers;
}

}  // namespace strata::train
