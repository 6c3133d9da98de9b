// What every op checks before it looks at memory.
// Owns: the wording of those errors. Never: a kernel.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/base/error.h"
#include "strata/ops/kernel_arguments.h"

namespace strata::ops {

// The type tag of fp32 or bf16, on a GPU (or planned for one) also of fp16; another type:
// InternalError that names op and argument.
Element element_of(const char* op, const char* argument, const at::Tensor& tensor);

// Exact shape and type, last dim contiguous (or no stride at all for `contiguous`).
void check_shape(const char* op, const char* argument, const at::Tensor& tensor,
                 at::IntArrayRef shape);
void check_type(const char* op, const char* argument, const at::Tensor& tensor,
                at::ScalarType type);
void check_contiguous(const char* op, const char* argument, const at::Tensor& tensor);
void check_last_dim_contiguous(const char* op, const char* argument, const at::Tensor& tensor);
void check_same_device(const char* op, const char* argument, const at::Tensor& tensor,
                       const at::Tensor& like);

// `copy`: 16 bits, contiguous, of the shape of `values` and beside them; undefined: none.
RoundedCopy rounded_copy_of(const char* op, const at::Tensor& copy, const at::Tensor& values);

// Kernels exist for the CPU and, in builds that have them, for NVIDIA GPUs. Another device:
// ConfigError.
void check_device(const char* op, const at::Tensor& tensor);
// The same for an op that the memory plan can walk: tensors without data (device "meta") pass, and
// the op allocates what it would and returns before its kernel.
void check_device_or_plan(const char* op, const at::Tensor& tensor);
// A contiguous matrix `x` on such a device, with a number for each row by which it draws: int64
// [rows].
void check_keyed_rows(const char* op, const at::Tensor& x, const at::Tensor& token_keys);

}  // namespace strata::ops
