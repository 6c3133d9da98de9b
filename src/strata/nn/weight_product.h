// Products with a layer's weight, whatever its form at rest. Owns: the choice between dense and
// quantised weights. Never: autograd, bias, branches.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// What a forward pass is for.
enum class Purpose {
  kTraining,
  kEvaluation,
  kAnswering,  // with a cache of earlier tokens, so that there are few rows
};
Purpose purpose_of(const ForwardContext& context);

// y [T, out] = x W^T + beta * y, beta 0 or 1, for W [out, in]; of a transposed parameter W is the
// transposed value. Requires: W is gathered.
void multiply_by_weight_into(at::Tensor y, const at::Tensor& x, const Parameter& weight,
                             float beta);

// The same in a forward pass: outside training 8-bit weights are multiplied as LLM.int8() does, as
// in bitsandbytes. In answers few rows are multiplied by codes of files (fp8, whole numbers) as by
// those of bitsandbytes; elsewhere their products are those of the decoded copy, to the bit.
void forward_product_into(at::Tensor y, const at::Tensor& x, const Parameter& weight, float beta,
                          Purpose purpose);

// dx [T, in] = dy W + beta * dx.
void multiply_by_weight_back_into(at::Tensor dx, const at::Tensor& dy, const Parameter& weight,
                                  float beta);

}  // namespace strata::nn
