#include "strata/nn/vera.h"

#include <ATen/ATen.h>

#include "strata/ops/dropout.h"
#include "strata/ops/matmul/matmul.h"

namespace strata::nn {
namespace {

bool drops(const Vera& vera, const DropoutDraw& draw) {
  return vera.dropout > 0 && draw.token_keys.defined();
}

uint64_t key_of(const Vera& vera, const DropoutDraw& draw) {
  return dropout_key(draw.draw, vera.layer_id);
}

at::Tensor matrix_a(const Vera& vera, int64_t in_features) {
  return vera.projection->a.narrow(1, 0, in_features).to(vera.d.value().scalar_type());
}

at::Tensor matrix_b(const Vera& vera) {
  return vera.projection->b.narrow(0, 0, vera.b.shape()[0]).to(vera.d.value().scalar_type());
}

}  // namespace

at::Tensor vera_hidden(const at::Tensor& x, const Vera& vera, const DropoutDraw& draw) {
  at::Tensor input = x.to(vera.d.value().scalar_type());
  if (drops(vera, draw)) {
    input = ops::dropout(input, vera.dropout, draw.token_keys, key_of(vera, draw));
  }
  return ops::thin_product(input, matrix_a(vera, x.size(1)).t());
}

at::Tensor vera_forward_(at::Tensor y, const at::Tensor& x, const Vera& vera,
                         const DropoutDraw& draw) {
  const at::Tensor hidden = vera_hidden(x, vera, draw);
  y.add_(ops::thin_product(hidden * vera.d.value(), matrix_b(vera).t()).mul_(vera.b.value()));
  return hidden;
}

void vera_backward(const at::Tensor& dy, const at::Tensor& hidden, Vera& vera,
                   const DropoutDraw& draw, at::Tensor dx) {
  const at::Tensor gradient = dy.to(hidden.scalar_type());
  const at::Tensor b = matrix_b(vera);
  if (vera.b.requires_grad()) {
    const at::Tensor rows = ops::thin_product(hidden * vera.d.value(), b.t());
    vera.b.accumulate_grad((gradient.to(at::kFloat) * rows).sum(0));
  }
  const at::Tensor scaled = ops::thin_product(gradient * vera.b.value(), b);
  if (vera.d.requires_grad()) {
    vera.d.accumulate_grad((scaled.to(at::kFloat) * hidden).sum(0));
  }
  if (!dx.defined()) return;
  const at::Tensor dinput = ops::thin_product(scaled * vera.d.value(), matrix_a(vera, dx.size(1)));
  if (drops(vera, draw)) {
    ops::add_dropout_backward_(dx, dinput, vera.dropout, draw.token_keys, key_of(vera, draw));
  } else {
    dx.add_(dinput);
  }
}

}  // namespace strata::nn
