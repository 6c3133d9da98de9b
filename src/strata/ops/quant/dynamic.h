// The 8-bit dynamic map for optimizer state: blockwise, one scale per 256 elements.
// Owns: the checks. Never: update rules. Source: Dettmers et al. 2022, "8-bit Optimizers via
// Block-wise Quantization"; state as bitsandbytes lays it out.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::ops {
struct AdamWStep;
}

namespace strata::ops::quant {

inline constexpr int64_t kStateBlock = 256;

// Codes (uint8 [n]) and scales (fp32 [blocks]) of x (fp32 [n]): the nearest value of the signed or
// unsigned map, as published. All contiguous.
void encode_state(const at::Tensor& x, bool is_signed, at::Tensor codes, at::Tensor scales);
// The inverse, into x.
void decode_state(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, at::Tensor x);

// One of AdamW's moments.
struct State8Bit {
  at::Tensor codes, scales;
};
// One AdamW update (ops/adamw.h, `copy` too) whose moments rest in 8 bits; on a GPU one pass over
// memory.
void adamw_8bit_(at::Tensor param, const at::Tensor& grad, const State8Bit& exp_avg,
                 const State8Bit& exp_avg_sq, const AdamWStep& options,
                 const at::Tensor& copy = {});

// The code of 0 in the map: what state starts from.
uint8_t code_of_zero(bool is_signed);

}  // namespace strata::ops::quant
