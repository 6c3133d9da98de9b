// Dropout: checks and choice of the device. The kernels are in dropout_cpu.cpp and
// dropout_cuda.cu.
#include "strata/ops/dropout.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

namespace {

constexpr const char* kOp = "dropout";

void check_probability(double p) {
  if (!(p >= 0 && p <= 1)) {
    throw ConfigError("dropout: found probability {}, expected 0 .. 1", p);
  }
}

void drop_into(const at::Tensor& y, const at::Tensor& x, double p, const at::Tensor& token_keys,
               uint64_t key, bool add) {
  check_keyed_rows(kOp, x, token_keys);
  if (x.is_meta()) return;
  const ActivityTimer timer(Activity::kElementWise);
  const DropoutArguments arguments{.type = element_of(kOp, "x", x),
                                   .x = x.const_data_ptr(),
                                   .y = y.mutable_data_ptr(),
                                   .token_keys = token_keys.const_data_ptr<int64_t>(),
                                   .tokens = x.size(0),
                                   .channels = x.size(1),
                                   .key = key,
                                   .p = p,
                                   .add = add};
  if constexpr (kHasCuda) {
    if (x.is_cuda()) return cuda::dropout(arguments, cuda::current_stream(x));
  }
  cpu::dropout(arguments);
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, const at::Tensor& token_keys, uint64_t key) {
  check_probability(p);
  if (p == 0) return x;
  at::Tensor y = at::empty_like(x);
  drop_into(y, x, p, token_keys, key, /*add=*/false);
  return y;
}

at::Tensor dropout_backward(const at::Tensor& dy, double p, const at::Tensor& token_keys,
                            uint64_t key) {
  return dropout(dy, p, token_keys, key);
}

void add_dropout_backward_(at::Tensor sum, const at::Tensor& dy, double p,
                           const at::Tensor& token_keys, uint64_t key) {
  check_probability(p);
  check_shape(kOp, "sum", sum, dy.sizes());
  const bool is_one_pass = p > 0 && sum.scalar_type() == dy.scalar_type() && sum.is_contiguous();
  if (is_one_pass) {
    drop_into(sum, dy, p, token_keys, key, /*add=*/true);
  } else {
    sum.add_(dropout_backward(dy, p, token_keys, key));
  }
}

}  // namespace strata::ops
