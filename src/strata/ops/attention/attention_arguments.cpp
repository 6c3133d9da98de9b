#include "strata/ops/attention/attention_arguments.h"

#include "strata/ops/check.h"

namespace strata::ops {

HeadsView heads_view(const char* op, const char* argument, const at::Tensor& tensor,
                     const at::Tensor& like) {
  check_device_or_plan(op, tensor);
  check_type(op, argument, tensor, like.scalar_type());
  check_last_dim_contiguous(op, argument, tensor);
  return {tensor.is_meta() ? nullptr : const_cast<void*>(tensor.const_data_ptr()), tensor.stride(0),
          tensor.stride(1), tensor.size(1)};
}

void check_heads(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (q.dim() != 3 || k.dim() != 3 || q.size(2) != k.size(2) || k.size(1) == 0 ||
      q.size(1) % k.size(1) != 0) {
    throw InternalError(
        "{}: found q of shape [{}] and k of shape [{}], expected [tokens, heads, channels] with "
        "the same channels and a multiple of k's heads",
        op, fmt::join(q.sizes(), ", "), fmt::join(k.sizes(), ", "));
  }
  check_shape(op, "v", v, k.sizes());
}

}  // namespace strata::ops
