#include "strata/nn/rescale.h"

#include <ATen/ATen.h>

namespace strata::nn {

at::Tensor rescaled(const at::Tensor& x, const Rescale& rescale) {
  return (x * rescale.factors.value().view({-1})).to(x.scalar_type());
}

at::Tensor rescale_backward(const at::Tensor& gradient, const at::Tensor& x, Rescale& rescale) {
  if (rescale.factors.requires_grad()) {
    const at::Tensor sum = (gradient.to(at::kFloat) * x).sum(0);
    rescale.factors.accumulate_grad(sum.view(rescale.factors.shape()));
  }
  return rescaled(gradient, rescale);
}

}  // namespace strata::nn
