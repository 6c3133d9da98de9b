// Rotary position embedding: checks and choice of the device. The kernels are in rope_cpu.cpp and
// rope_cuda.cu.
#include "strata/ops/rope.h"

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

void apply_rope_(at::Tensor x, const at::Tensor& cos, const at::Tensor& sin, bool inverse,
                 RopePairs pairs) {
  constexpr const char* kOp = "rope";
  check_device_or_plan(kOp, x);
  if (x.dim() != 3 || x.size(2) % 2 != 0) {
    throw InternalError("rope: found x of shape [{}], expected [tokens, heads, even channels]",
                        fmt::join(x.sizes(), ", "));
  }
  check_last_dim_contiguous(kOp, "x", x);
  for (const auto* table : {&cos, &sin}) {
    const char* argument = table == &cos ? "cos" : "sin";
    check_shape(kOp, argument, *table, {x.size(0), x.size(2) / 2});
    check_type(kOp, argument, *table, at::kFloat);
    check_contiguous(kOp, argument, *table);
  }
  if (x.is_meta()) return;
  const ActivityTimer timer(Activity::kElementWise);
  const RopeArguments arguments{.type = element_of(kOp, "x", x),
                                .x = {x.mutable_data_ptr(), x.stride(0), x.stride(1), x.size(1)},
                                .cos = cos.const_data_ptr<float>(),
                                .sin = sin.const_data_ptr<float>(),
                                .tokens = x.size(0),
                                .half = x.size(2) / 2,
                                .inverse = inverse,
                                .pairs = pairs};
  if constexpr (kHasCuda) {
    if (x.is_cuda()) return cuda::rope(arguments, cuda::current_stream(x));
  }
  cpu::rope(arguments);
}

}  // namespace strata::ops
