// LayerNorm: checks and choice of the device. The CPU's kernels are in layer_norm_cpu.cpp.
#include "strata/ops/layer_norm.h"

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "layer_norm";

void check_vector(const char* argument, const at::Tensor& tensor, int64_t channels) {
  check_shape(kOp, argument, tensor, {channels});
  check_contiguous(kOp, argument, tensor);
}

cpu::LayerNormArguments checked_arguments(const at::Tensor& x, const at::Tensor& weight) {
  check_device_or_plan(kOp, x);
  if (x.dim() != 2) check_shape(kOp, "x", x, {-1, -1});
  check_contiguous(kOp, "x", x);
  check_vector("weight", weight, x.size(1));
  return {.type = element_of(kOp, "x", x),
          .weight_type = element_of(kOp, "weight", weight),
          .x = x.is_meta() ? nullptr : x.const_data_ptr(),
          .weight = x.is_meta() ? nullptr : weight.const_data_ptr(),
          .tokens = x.size(0),
          .channels = x.size(1)};
}

void check_like_x(const char* argument, const at::Tensor& tensor, const at::Tensor& x) {
  check_shape(kOp, argument, tensor, x.sizes());
  check_type(kOp, argument, tensor, x.scalar_type());
  check_contiguous(kOp, argument, tensor);
}

void check_statistic(const char* argument, const at::Tensor& tensor, const at::Tensor& x) {
  check_shape(kOp, argument, tensor, {x.size(0)});
  check_type(kOp, argument, tensor, at::kFloat);
  check_contiguous(kOp, argument, tensor);
}

// The kernels for GPUs want x, weight and bias of one type.
LayerNormResult norm_by_libtorch(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& bias, double eps) {
  const auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(1)}, weight.to(x.scalar_type()),
                                                     bias.to(x.scalar_type()), eps);
  return {y, mean.view({-1}), rstd.view({-1})};
}

void put(const LayerNormTarget& target, const at::Tensor& gradient) {
  if (!target.tensor.defined()) return;
  target.beta == 0 ? target.tensor.copy_(gradient) : target.tensor.add_(gradient);
}

at::Tensor backward_by_libtorch(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& mean, const at::Tensor& rstd,
                                const LayerNormTarget& dweight, const LayerNormTarget& dbias) {
  const at::Tensor same = weight.to(x.scalar_type());
  auto [dx, of_weight, of_bias] = at::native_layer_norm_backward(
      dy, x, {x.size(1)}, mean.view({-1, 1}), rstd.view({-1, 1}), same, same,
      {true, dweight.tensor.defined(), dbias.tensor.defined()});
  put(dweight, of_weight);
  put(dbias, of_bias);
  return dx;
}

cpu::LayerNormSum sum_for(const char* argument, const LayerNormTarget& target, int64_t channels) {
  if (!target.tensor.defined()) return {};
  check_vector(argument, target.tensor, channels);
  return {.type = element_of(kOp, argument, target.tensor),
          .data = target.tensor.is_meta() ? nullptr : target.tensor.mutable_data_ptr(),
          .beta = target.beta};
}

}  // namespace

LayerNormResult layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           double eps) {
  const cpu::LayerNormArguments arguments = checked_arguments(x, weight);
  check_vector("bias", bias, x.size(1));
  const Element bias_type = element_of(kOp, "bias", bias);
  if (x.is_cuda()) return norm_by_libtorch(x, weight, bias, eps);
  const auto fp32 = x.options().dtype(at::kFloat);
  LayerNormResult result{at::empty_like(x), at::empty({x.size(0)}, fp32),
                         at::empty({x.size(0)}, fp32)};
  if (x.is_meta()) return result;
  const ActivityTimer timer(Activity::kElementWise);
  cpu::layer_norm(arguments, {.bias_type = bias_type,
                              .bias = bias.const_data_ptr(),
                              .eps = eps,
                              .y = result.y.mutable_data_ptr(),
                              .mean = result.mean.mutable_data_ptr<float>(),
                              .rstd = result.rstd.mutable_data_ptr<float>()});
  return result;
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& mean, const at::Tensor& rstd,
                               const LayerNormTarget& dweight, const LayerNormTarget& dbias,
                               const at::Tensor& residual_grad) {
  const cpu::LayerNormArguments arguments = checked_arguments(x, weight);
  check_like_x("dy", dy, x);
  check_statistic("mean", mean, x);
  check_statistic("rstd", rstd, x);
  if (residual_grad.defined()) check_like_x("residual_grad", residual_grad, x);
  const cpu::LayerNormSum of_weight = sum_for("dweight", dweight, x.size(1));
  const cpu::LayerNormSum of_bias = sum_for("dbias", dbias, x.size(1));
  if (x.is_cuda()) {
    at::Tensor dx = backward_by_libtorch(dy, x, weight, mean, rstd, dweight, dbias);
    return residual_grad.defined() ? dx.add_(residual_grad) : dx;
  }
  at::Tensor dx = at::empty_like(x);
  if (x.is_meta()) return dx;
  const ActivityTimer timer(Activity::kElementWise);
  cpu::layer_norm_backward(
      arguments, {.dy = dy.const_data_ptr(),
                  .residual = residual_grad.defined() ? residual_grad.const_data_ptr() : nullptr,
                  .mean = mean.const_data_ptr<float>(),
                  .rstd = rstd.const_data_ptr<float>(),
                  .dx = dx.mutable_data_ptr(),
                  .dweight = of_weight,
                  .dbias = of_bias});
  return dx;
}

}  // namespace strata::ops
