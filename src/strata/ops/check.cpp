// The argument checks shared by the ops. Never: a kernel.
#include "strata/ops/check.h"

#include "strata/libtorch/planned_device.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

Element element_of(const char* op, const char* argument, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Element::kFloat;
  if (tensor.scalar_type() == at::kBFloat16) return Element::kBFloat16;
  const bool has_half = is_for_cuda(tensor);
  if (has_half && tensor.scalar_type() == at::kHalf) return Element::kHalf;
  throw InternalError("{}: found {} of type {}, expected float{} bfloat16", op, argument,
                      c10::toString(tensor.scalar_type()), has_half ? ", half or" : " or");
}

void check_shape(const char* op, const char* argument, const at::Tensor& tensor,
                 at::IntArrayRef shape) {
  if (tensor.sizes() == shape) return;
  throw InternalError("{}: found {} of shape [{}], expected [{}]", op, argument,
                      fmt::join(tensor.sizes(), ", "), fmt::join(shape, ", "));
}

void check_type(const char* op, const char* argument, const at::Tensor& tensor,
                at::ScalarType type) {
  if (tensor.scalar_type() == type) return;
  throw InternalError("{}: found {} of type {}, expected {}", op, argument,
                      c10::toString(tensor.scalar_type()), c10::toString(type));
}

void check_contiguous(const char* op, const char* argument, const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return;
  throw InternalError("{}: found {} with strides [{}], expected contiguous memory", op, argument,
                      fmt::join(tensor.strides(), ", "));
}

void check_last_dim_contiguous(const char* op, const char* argument, const at::Tensor& tensor) {
  if (tensor.dim() > 0 && (tensor.size(-1) <= 1 || tensor.stride(-1) == 1)) return;
  throw InternalError("{}: found {} with strides [{}], expected a contiguous last dim", op,
                      argument, fmt::join(tensor.strides(), ", "));
}

void check_same_device(const char* op, const char* argument, const at::Tensor& tensor,
                       const at::Tensor& like) {
  if (tensor.device() == like.device()) return;
  throw InternalError("{}: found {} on {}, expected {}", op, argument, tensor.device().str(),
                      like.device().str());
}

RoundedCopy rounded_copy_of(const char* op, const at::Tensor& copy, const at::Tensor& values) {
  if (!copy.defined()) return {};
  const bool is_half = copy.scalar_type() == at::kHalf;
  if (!is_half) check_type(op, "copy", copy, at::kBFloat16);
  check_shape(op, "copy", copy, values.sizes());
  check_contiguous(op, "copy", copy);
  check_same_device(op, "copy", copy, values);
  return {.type = is_half ? Element::kHalf : Element::kBFloat16,
          .data = copy.is_meta() ? nullptr : copy.mutable_data_ptr()};
}

void check_device_or_plan(const char* op, const at::Tensor& tensor) {
  if (!tensor.is_meta()) check_device(op, tensor);
}

void check_keyed_rows(const char* op, const at::Tensor& x, const at::Tensor& token_keys) {
  check_device_or_plan(op, x);
  if (x.dim() != 2) check_shape(op, "x", x, {-1, -1});
  check_contiguous(op, "x", x);
  check_shape(op, "token_keys", token_keys, {x.size(0)});
  check_type(op, "token_keys", token_keys, at::kLong);
  check_contiguous(op, "token_keys", token_keys);
}

void check_device(const char* op, const at::Tensor& tensor) {
  if (tensor.is_cpu() || (kHasCuda && tensor.is_cuda())) return;
  throw ConfigError("{}: found a tensor on {}, expected cpu{}; this build has kernels for {} only",
                    op, tensor.device().str(), kHasCuda ? " or cuda" : "",
                    kHasCuda ? "these" : "cpu");
}

}  // namespace strata::ops
