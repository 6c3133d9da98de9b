// Uniform noise: checks and choice of the device. The kernels are in uniform_noise_cpu.cpp and
// uniform_noise_cuda.cu.
#include "strata/ops/uniform_noise.h"

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

void add_uniform_noise_(at::Tensor x, double magnitude, const at::Tensor& token_keys,
                        uint64_t key) {
  constexpr const char* kOp = "uniform_noise";
  check_keyed_rows(kOp, x, token_keys);
  if (x.is_meta()) return;
  const ActivityTimer timer(Activity::kElementWise);
  const NoiseArguments arguments{.type = element_of(kOp, "x", x),
                                 .x = x.mutable_data_ptr(),
                                 .token_keys = token_keys.const_data_ptr<int64_t>(),
                                 .tokens = x.size(0),
                                 .channels = x.size(1),
                                 .key = key,
                                 .magnitude = static_cast<float>(magnitude)};
  if constexpr (kHasCuda) {
    if (x.is_cuda()) return cuda::uniform_noise(arguments, cuda::current_stream(x));
  }
  cpu::uniform_noise(arguments);
}

}  // namespace strata::ops
