// Oracle: libtorch's own cat, expand and padding under autograd.
#include "strata/nn/attention/latent_keys.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace strata::nn {
namespace {

LatentKeys by_libtorch(const at::Tensor& heads, const at::Tensor& shared, const LatentHeads& s) {
  const int64_t num_tokens = heads.size(0);
  const at::Tensor each = heads.view({num_tokens, s.num_heads, s.plain_dim + s.value_dim});
  const at::Tensor turned = shared.unsqueeze(1).expand({num_tokens, s.num_heads, s.turned_dim});
  const at::Tensor keys = at::cat({each.narrow(2, 0, s.plain_dim), turned}, 2);
  const at::Tensor values =
      at::constant_pad_nd(each.narrow(2, s.plain_dim, s.value_dim), {0, s.key_dim() - s.value_dim});
  return {keys.flatten(1), values.flatten(1)};
}

void compare(const LatentHeads& s, int64_t num_tokens) {
  at::manual_seed(3);
  // Shared channels behind others, as a projection gives them.
  const at::Tensor heads =
      at::randn({num_tokens, s.num_heads * (s.plain_dim + s.value_dim)}).requires_grad_();
  const at::Tensor wide = at::randn({num_tokens, 5 + s.turned_dim}).requires_grad_();
  const auto run = [&](const auto& make) {
    const LatentKeys made = make(heads, wide.narrow(1, 5, s.turned_dim), s);
    at::manual_seed(4);
    const at::Tensor dk = at::randn(made.keys.sizes()), dv = at::randn(made.values.sizes());
    auto results = torch::autograd::grad({made.keys, made.values}, {heads, wide}, {dk, dv});
    results.insert(results.end(), {made.keys, made.values});
    return results;
  };
  const auto found = run(latent_keys), expected = run(by_libtorch);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-6, 1e-6)) << "result " << i;
  }
}

TEST(LatentKeys, AreThoseOfLibtorch) {
  compare({.num_heads = 4, .plain_dim = 6, .turned_dim = 4, .value_dim = 8}, 7);
  compare({.num_heads = 1, .plain_dim = 1, .turned_dim = 2, .value_dim = 3}, 1);
  compare({.num_heads = 3, .plain_dim = 5, .turned_dim = 2, .value_dim = 1}, 12);
  compare({.num_heads = 2, .plain_dim = 4, .turned_dim = 4, .value_dim = 8}, 0);
}

}  // namespace
}  // namespace strata::nn
