// AdamW: checks and choice of the device. The kernels are in adamw_cpu.cpp and
// adamw_cuda.cu.
#include "strata/ops/adamw.h"

#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

void adamw_(at::Tensor param, const at::Tensor& grad, at::Tensor exp_avg, at::Tensor exp_avg_sq,
            const AdamWStep& options, const at::Tensor& copy) {
  constexpr const char* kOp = "adamw";
  check_device_or_plan(kOp, param);
  const std::pair<const char*, const at::Tensor*> tensors[] = {
      {"param", &param}, {"grad", &grad}, {"exp_avg", &exp_avg}, {"exp_avg_sq", &exp_avg_sq}};
  for (const auto& [argument, tensor] : tensors) {
    check_shape(kOp, argument, *tensor, param.sizes());
    check_type(kOp, argument, *tensor, at::kFloat);
    check_contiguous(kOp, argument, *tensor);
  }
  const RoundedCopy rounded = rounded_copy_of(kOp, copy, param);
  if (options.step < 1) {
    throw InternalError("adamw: found step {}, expected 1 or later", options.step);
  }
  if (param.is_meta()) return;
  if constexpr (kHasCuda) {
    if (param.is_cuda()) {
      return cuda::adamw({.param = param.mutable_data_ptr<float>(),
                          .grad = grad.const_data_ptr<float>(),
                          .exp_avg = exp_avg.mutable_data_ptr<float>(),
                          .exp_avg_sq = exp_avg_sq.mutable_data_ptr<float>(),
                          .n = param.numel(),
                          .copy = rounded},
                         factors_of(options), cuda::current_stream(param));
    }
  }
  // fp16 has no kernels of ours on CPUs.
  const bool is_bf16 = rounded.type == Element::kBFloat16;
  cpu::adamw(param.mutable_data_ptr<float>(), grad.const_data_ptr<float>(),
             exp_avg.mutable_data_ptr<float>(), exp_avg_sq.mutable_data_ptr<float>(), param.numel(),
             options, is_bf16 ? static_cast<uint16_t*>(rounded.data) : nullptr);
  if (copy.defined() && !is_bf16) copy.copy_(param);
}

}  // namespace strata::ops
