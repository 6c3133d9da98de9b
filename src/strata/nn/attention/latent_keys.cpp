#include "strata/nn/attention/latent_keys.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [T, num_heads, channels] of the projection, of keys, of values.
struct Parts {
  at::Tensor plain, value;
};

Parts parts_of(const at::Tensor& heads, const LatentHeads& s) {
  const at::Tensor each = heads.view({heads.size(0), s.num_heads, s.plain_dim + s.value_dim});
  return {each.narrow(2, 0, s.plain_dim), each.narrow(2, s.plain_dim, s.value_dim)};
}

at::Tensor by_head(const at::Tensor& x, const LatentHeads& s) {
  return x.view({x.size(0), s.num_heads, s.key_dim()});
}

struct LatentKeysFunction : torch::autograd::Function<LatentKeysFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& heads,
                               const at::Tensor& shared, const LatentHeads& s) {
    const ActivityTimer timer(Activity::kElementWise);
    const Parts in = parts_of(heads, s);
    const at::Tensor keys = at::empty({heads.size(0), s.num_heads * s.key_dim()}, heads.options());
    const at::Tensor values = at::empty_like(keys);
    const at::Tensor k = by_head(keys, s), v = by_head(values, s);
    k.narrow(2, 0, s.plain_dim).copy_(in.plain);
    k.narrow(2, s.plain_dim, s.turned_dim).copy_(shared.unsqueeze(1));
    v.narrow(2, 0, s.value_dim).copy_(in.value);
    v.narrow(2, s.value_dim, s.key_dim() - s.value_dim).zero_();
    save_state(context, s);
    return {keys, values};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const auto& s = load_state<LatentHeads>(context);
    const at::Tensor dk = by_head(gradients[0].contiguous(), s);
    const at::Tensor dv = by_head(gradients[1].contiguous(), s);
    const at::Tensor dheads =
        at::empty({dk.size(0), s.num_heads * (s.plain_dim + s.value_dim)}, dk.options());
    const Parts out = parts_of(dheads, s);
    out.plain.copy_(dk.narrow(2, 0, s.plain_dim));
    out.value.copy_(dv.narrow(2, 0, s.value_dim));
    return {dheads, dk.narrow(2, s.plain_dim, s.turned_dim).sum(/*dim=*/1), at::Tensor()};
  }
};

}  // namespace

LatentKeys latent_keys(const at::Tensor& heads, const at::Tensor& shared,
                       const LatentHeads& sizes) {
  const variable_list made = LatentKeysFunction::apply(heads, shared, sizes);
  return {made[0], made[1]};
}

}  // namespace strata::nn
