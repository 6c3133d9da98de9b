// Optimizer state in 8 bits: checks. Never: a kernel.
#include "strata/ops/quant/dynamic.h"

#include "strata/ops/check.h"
#include "strata/ops/quant/kernels.h"

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
  cpu::quantize_dynamic(is_signed, cpu::Rounding::kNearest, kStateBlock, x.const_data_ptr<float>(),
                        x.numel(), codes.mutable_data_ptr<uint8_t>(),
                        scales.mutable_data_ptr<float>());
}

void decode_state(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, at::Tensor x) {
  check(x, codes, scales);
  cpu::dequantize_dynamic(is_signed, kStateBlock, codes.const_data_ptr<uint8_t>(),
                          scales.const_data_ptr<float>(), x.numel(), x.mutable_data_ptr<float>());
}

uint8_t code_of_zero(bool is_signed) { return is_signed ? 127 : 0; }

}  // namespace strata::ops::quant
