// Optimizer state in 8 bits: checks. Never: a kernel.
#include "strata/ops/quant/dynamic.h"

#include <ATen/ATen.h>

#include "strata/ops/adamw.h"
#include "strata/ops/check.h"
#include "strata/ops/current_stream.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/map_on_device.h"

namespace strata::ops::quant {
namespace {

constexpr const char* kOp = "8-bit state";

void check(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales) {
  check_device(kOp, x);
  check_type(kOp, "values", x, at::kFloat);
  check_type(kOp, "codes", codes, at::kByte);
  check_type(kOp, "scales", scales, at::kFloat);
  check_shape(kOp, "codes", codes, x.sizes());
  check_shape(kOp, "scales", scales, {(x.numel() + kStateBlock - 1) / kStateBlock});
  for (const at::Tensor* tensor : {&x, &codes, &scales}) {
    check_contiguous(kOp, "tensor", *tensor);
  }
}

}  // namespace

void encode_state(const at::Tensor& x, bool is_signed, at::Tensor codes, at::Tensor scales) {
  check(x, codes, scales);
  if constexpr (kHasCuda) {
    if (x.is_cuda()) {
      return cuda::quantize_dynamic(map_on_device(is_signed, x.device()), is_signed, kStateBlock,
                                    x.const_data_ptr<float>(), x.numel(),
                                    codes.mutable_data_ptr<uint8_t>(),
                                    scales.mutable_data_ptr<float>(), ops::cuda::current_stream(x));
    }
  }
  cpu::quantize_dynamic(is_signed, cpu::Rounding::kNearest, kStateBlock, x.const_data_ptr<float>(),
                        x.numel(), codes.mutable_data_ptr<uint8_t>(),
                        scales.mutable_data_ptr<float>());
}

void decode_state(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, at::Tensor x) {
  check(x, codes, scales);
  if constexpr (kHasCuda) {
    if (x.is_cuda()) {
      return cuda::dequantize_dynamic({.map = map_on_device(is_signed, x.device()),
                                       .block = kStateBlock,
                                       .codes = codes.const_data_ptr<uint8_t>(),
                                       .scales = scales.const_data_ptr<float>(),
                                       .mean = nullptr},
                                      x.numel(), /*count=*/1, x.mutable_data_ptr<float>(),
                                      ops::cuda::current_stream(x));
    }
  }
  cpu::dequantize_dynamic(is_signed, kStateBlock, codes.const_data_ptr<uint8_t>(),
                          scales.const_data_ptr<float>(), x.numel(), x.mutable_data_ptr<float>());
}

void adamw_8bit_(at::Tensor param, const at::Tensor& grad, const State8Bit& exp_avg,
                 const State8Bit& exp_avg_sq, const AdamWStep& options, const at::Tensor& copy) {
  check(param, exp_avg.codes, exp_avg.scales);
  check(param, exp_avg_sq.codes, exp_avg_sq.scales);
  check_shape("adamw", "grad", grad, param.sizes());
  check_type("adamw", "grad", grad, at::kFloat);
  check_contiguous("adamw", "grad", grad);
  const RoundedCopy rounded = rounded_copy_of("adamw", copy, param);
  if constexpr (kHasCuda) {
    if (param.is_cuda()) {
      return cuda::adamw_8bit({.param = param.mutable_data_ptr<float>(),
                               .grad = grad.const_data_ptr<float>(),
                               .exp_avg = exp_avg.codes.mutable_data_ptr<uint8_t>(),
                               .exp_avg_scales = exp_avg.scales.mutable_data_ptr<float>(),
                               .exp_avg_sq = exp_avg_sq.codes.mutable_data_ptr<uint8_t>(),
                               .exp_avg_sq_scales = exp_avg_sq.scales.mutable_data_ptr<float>(),
                               .n = param.numel(),
                               .signed_map = map_on_device(/*is_signed=*/true, param.device()),
                               .unsigned_map = map_on_device(/*is_signed=*/false, param.device()),
                               .copy = rounded},
                              factors_of(options), ops::cuda::current_stream(param));
    }
  }
  const at::Tensor m = at::empty_like(param), v = at::empty_like(param);
  decode_state(exp_avg.codes, exp_avg.scales, /*is_signed=*/true, m);
  decode_state(exp_avg_sq.codes, exp_avg_sq.scales, /*is_signed=*/false, v);
  adamw_(param, grad, m, v, options, copy);
  encode_state(m, /*is_signed=*/true, exp_avg.codes, exp_avg.scales);
  encode_state(v, /*is_signed=*/false, exp_avg_sq.codes, exp_avg_sq.scales);
}

uint8_t code_of_zero(bool is_signed) { return is_signed ? 127 : 0; }

}  // namespace strata::ops::quant
