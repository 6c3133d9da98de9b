// RMSNorm: checks and choice of the device. The kernels are in rms_norm_cpu.cpp and
// rms_norm_cuda.cu.
#include "strata/ops/rms_norm.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

namespace {

RmsNormArguments checked_arguments(const at::Tensor& x, const at::Tensor& weight,
                                   RmsNormKind kind) {
  constexpr const char* kOp = "rms_norm";
  check_device_or_plan(kOp, x);
  if (x.dim() != 2) check_shape(kOp, "x", x, {-1, -1});
  check_contiguous(kOp, "x", x);
  check_shape(kOp, "weight", weight, {x.size(1)});
  check_contiguous(kOp, "weight", weight);
  return {.type = element_of(kOp, "x", x),
          .weight_type = element_of(kOp, "weight", weight),
          .x = x.is_meta() ? nullptr : x.const_data_ptr(),
          .weight = x.is_meta() ? nullptr : weight.const_data_ptr(),
          .rstd = nullptr,
          .tokens = x.size(0),
          .channels = x.size(1),
          .kind = kind};
}

void check_like_x(const char* argument, const at::Tensor& tensor, const at::Tensor& x) {
  check_shape("rms_norm", argument, tensor, x.sizes());
  check_type("rms_norm", argument, tensor, x.scalar_type());
  check_contiguous("rms_norm", argument, tensor);
}

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                       RmsNormKind kind) {
  RmsNormArguments arguments = checked_arguments(x, weight, kind);
  RmsNormResult result{at::empty_like(x), at::empty({x.size(0)}, x.options().dtype(at::kFloat))};
  if (x.is_meta()) return result;
  const ActivityTimer timer(Activity::kElementWise);
  arguments.rstd = result.rstd.mutable_data_ptr<float>();
  if constexpr (kHasCuda) {
    if (x.is_cuda()) {
      cuda::rms_norm(arguments, result.y.mutable_data_ptr(), eps, cuda::current_stream(x));
      return result;
    }
  }
  cpu::rms_norm(arguments, result.y.mutable_data_ptr(), eps);
  return result;
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& dweight, float beta,
                             RmsNormKind kind) {
  return rms_norm_backward_add(dy, x, weight, rstd, dweight, beta, at::Tensor(), kind);
}

at::Tensor rms_norm_backward_add(const at::Tensor& dy, const at::Tensor& x,
                                 const at::Tensor& weight, const at::Tensor& rstd,
                                 const at::Tensor& dweight, float beta,
                                 const at::Tensor& residual_grad, RmsNormKind kind) {
  RmsNormArguments arguments = checked_arguments(x, weight, kind);
  check_like_x("dy", dy, x);
  check_shape("rms_norm", "rstd", rstd, {x.size(0)});
  check_type("rms_norm", "rstd", rstd, at::kFloat);
  check_contiguous("rms_norm", "rstd", rstd);
  if (residual_grad.defined()) check_like_x("residual_grad", residual_grad, x);
  at::Tensor dx = at::empty_like(x);
  at::Tensor partials;
  if (is_for_cuda(x) && dweight.defined()) {
    partials =
        at::empty({cuda::rms_norm_partials(x.size(0), x.size(1)), x.size(1)}, rstd.options());
  }
  if (x.is_meta()) return dx;
  const ActivityTimer timer(Activity::kElementWise);
  arguments.rstd = const_cast<float*>(rstd.const_data_ptr<float>());  // only read
  RmsNormGradients gradients{.dy = dy.const_data_ptr(),
                             .residual = nullptr,
                             .dx = dx.mutable_data_ptr(),
                             .dweight = nullptr,
                             .dweight_type = Element::kFloat,
                             .beta = beta};
  if (residual_grad.defined()) gradients.residual = residual_grad.const_data_ptr();
  if (dweight.defined()) {
    check_shape("rms_norm", "dweight", dweight, weight.sizes());
    check_contiguous("rms_norm", "dweight", dweight);
    gradients.dweight = dweight.mutable_data_ptr();
    gradients.dweight_type = element_of("rms_norm", "dweight", dweight);
  }
  if constexpr (kHasCuda) {
    if (x.is_cuda()) {
      cuda::rms_norm_backward(arguments, gradients,
                              partials.defined() ? partials.mutable_data_ptr<float>() : nullptr,
                              cuda::current_stream(x));
      return dx;
    }
  }
  cpu::rms_norm_backward(arguments, gradients);
  return dx;
}

}  // namespace strata::ops
