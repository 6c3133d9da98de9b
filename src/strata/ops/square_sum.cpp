// Sum of squares: checks and choice of the device. The kernel is in square_sum_cpu.cpp.
#include "strata/ops/square_sum.h"

#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"

namespace strata::ops {

double square_sum(const at::Tensor& flat) {
  check_device_or_plan("square_sum", flat);
  check_contiguous("square_sum", "flat", flat);
  if (flat.is_meta()) return 0;
  return cpu::square_sum(element_of("square_sum", "flat", flat), flat.const_data_ptr(),
                         flat.numel());
}

}  // namespace strata::ops
