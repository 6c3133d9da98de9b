// The kernels of xIELU on raw memory, for CPUs and for NVIDIA GPUs, as cpu_kernels.h and
// cuda_kernels.h have those of the other ops. Owns: declarations. Never: tensors.
#pragma once

#include <cstdint>

#include "strata/ops/cuda_kernels.h"
#include "strata/ops/element.h"

namespace strata::ops {

struct XieluArguments {
  Element type;
  const float* numbers;  // alpha_p, alpha_n, beta, eps; where x is
  int64_t rows, columns;
};

namespace cpu {

void xielu(const XieluArguments& a, const void* x, void* y);
// Turns x into its gradient and writes `sums` [rows, 2]: each row's part of the gradients of
// alpha_p and alpha_n.
void xielu_backward(const XieluArguments& a, void* x, const void* dy, float* sums);

}  // namespace cpu

namespace cuda {

void xielu(const XieluArguments& a, const void* x, void* y, Stream stream);
void xielu_backward(const XieluArguments& a, void* x, const void* dy, float* sums, Stream stream);

}  // namespace cuda

}  // namespace strata::ops
