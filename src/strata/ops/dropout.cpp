// Dropout: checks and choice of the device. The kernels are in dropout_cpu.cpp and
// dropout_cuda.cu.
#include "strata/ops/dropout.h"

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

at::Tensor dropout(const at::Tensor& x, double p, const at::Tensor& token_keys, uint64_t key) {
  constexpr const char* kOp = "dropout";
  if (!(p >= 0 && p <= 1)) {
    throw ConfigError("dropout: found probability {}, expected 0 .. 1", p);
  }
  if (p == 0) return x;
  check_device_or_plan(kOp, x);
  if (x.dim() != 2) check_shape(kOp, "x", x, {-1, -1});
  check_contiguous(kOp, "x", x);
  check_shape(kOp, "token_keys", token_keys, {x.size(0)});
  check_type(kOp, "token_keys", token_keys, at::kLong);
  check_contiguous(kOp, "token_keys", token_keys);
  at::Tensor y = at::empty_like(x);
  if (x.is_meta()) return y;
  const ActivityTimer timer(Activity::kElementWise);
  const DropoutArguments arguments{.type = element_of(kOp, "x", x),
                                   .x = x.const_data_ptr(),
                                   .y = y.mutable_data_ptr(),
                                   .token_keys = token_keys.const_data_ptr<int64_t>(),
                                   .tokens = x.size(0),
                                   .channels = x.size(1),
                                   .key = key,
                                   .p = p};
  if constexpr (kHasCuda) {
    if (x.is_cuda()) {
      cuda::dropout(arguments, cuda::current_stream(x));
      return y;
    }
  }
  cpu::dropout(arguments);
  return y;
}

at::Tensor dropout_backward(const at::Tensor& dy, double p, const at::Tensor& token_keys,
                            uint64_t key) {
  return dropout(dy, p, token_keys, key);
}

}  // namespace strata::ops
