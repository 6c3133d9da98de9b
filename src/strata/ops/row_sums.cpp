// Sums of rows: checks and choice of the device. The kernels are in row_sums_cpu.cpp and
// row_sums_cuda.cu.
#include "strata/ops/row_sums.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "row_sums";

// How many rows a token has.
int64_t checked_rows(const at::Tensor& x, const at::Tensor& place, int64_t num_tokens,
                     const at::Tensor& weights) {
  check_device_or_plan(kOp, x);
  if (x.dim() != 2) check_shape(kOp, "x", x, {-1, -1});
  check_contiguous(kOp, "x", x);
  check_type(kOp, "place", place, at::kLong);
  check_contiguous(kOp, "place", place);
  check_same_device(kOp, "place", place, x);
  const int64_t per_token = num_tokens > 0 ? place.numel() / num_tokens : 0;
  check_shape(kOp, "place", place, {per_token * num_tokens});
  if (weights.defined()) {
    check_type(kOp, "weights", weights, at::kFloat);
    if (num_tokens > 0) check_shape(kOp, "weights", weights, {num_tokens, per_token});
    check_contiguous(kOp, "weights", weights);
    check_same_device(kOp, "weights", weights, x);
  }
  return per_token;
}

}  // namespace

at::Tensor row_sums(const at::Tensor& x, const at::Tensor& place, int64_t num_tokens,
                    const at::Tensor& weights) {
  const int64_t per_token = checked_rows(x, place, num_tokens, weights);
  at::Tensor y = at::empty({num_tokens, x.size(1)}, x.options());
  if (x.is_meta()) return y;
  const ActivityTimer timer(Activity::kElementWise);
  const RowSumsArguments a{.type = element_of(kOp, "x", x),
                           .x = x.const_data_ptr(),
                           .place = place.const_data_ptr<int64_t>(),
                           .weights = weights.defined() ? weights.const_data_ptr<float>() : nullptr,
                           .y = y.mutable_data_ptr(),
                           .tokens = num_tokens,
                           .per_token = per_token,
                           .columns = x.size(1)};
  if constexpr (kHasCuda) {
    if (x.is_cuda()) {
      cuda::row_sums(a, cuda::current_stream(x));
      return y;
    }
  }
  cpu::row_sums(a);
  return y;
}

}  // namespace strata::ops
