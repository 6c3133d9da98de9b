// The triangular inverse of the UT transform (gated_delta_rule.h), from small blocks to large ones.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/linear_attention/gated_delta_rule.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The blocks [B, n / size, size, size] on the diagonal of x [B, n, n], as a view.
at::Tensor diagonal_blocks(const at::Tensor& x, int64_t size) {
  const int64_t count = x.size(1) / size;
  return x.view({x.size(0), count, size, count, size}).diagonal(0, 1, 3).permute({0, 3, 1, 2});
}

struct InverseFunction : torch::autograd::Function<InverseFunction> {
  // From blocks to blocks of twice the size: the inverse of [[A, 0], [L, D]] has -D^-1 L A^-1 below
  // its diagonal. As stable as substitution, in products.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a) {
    const int64_t n = a.size(-1);
    const at::Tensor lower = a.reshape({-1, n, n});
    const at::Tensor inverse = at::eye(n, a.options()).expand({lower.size(0), n, n}).contiguous();
    for (int64_t half = 1; half < n; half *= 2) {
      const at::Tensor blocks = diagonal_blocks(inverse, 2 * half);
      const at::Tensor below =
          diagonal_blocks(lower, 2 * half).narrow(2, half, half).narrow(3, 0, half);
      const at::Tensor first = blocks.narrow(2, 0, half).narrow(3, 0, half);
      const at::Tensor second = blocks.narrow(2, half, half).narrow(3, half, half);
      blocks.narrow(2, half, half)
          .narrow(3, 0, half)
          .copy_(at::matmul(at::matmul(second, below), first).neg_());
    }
    const at::Tensor result = inverse.view(a.sizes());
    context->save_for_backward({result});
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor transposed = context->get_saved_variables()[0].transpose(-1, -2);
    return {at::matmul(at::matmul(transposed, gradients[0]), transposed).neg_().tril_(-1)};
  }
};

}  // namespace

at::Tensor unit_lower_inverse(const at::Tensor& a) { return InverseFunction::apply(a); }

}  // namespace strata::nn
