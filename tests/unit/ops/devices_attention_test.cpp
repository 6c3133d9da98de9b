// Oracle: attention in double, differentiated by autograd, on every device of devices.h.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "devices.h"
#include "reference.h"
#include "strata/ops/attention/attention.h"

namespace strata::ops {
namespace {

using reference::relative_error;

// Attention beside autograd in double; q, k and v lie in one buffer, as a fused projection gives
// them.
struct Shape {
  int64_t heads, kv_heads, channels;
  std::vector<int64_t> offsets;
  Sight sight = {};
};

void expect_attention(at::Device device, const Shape& shape, at::ScalarType type) {
  const auto& [heads, kv_heads, channels, offsets, sight] = shape;
  at::manual_seed(13);
  const std::string row = device.str() + " " + c10::toString(type) + " " + std::to_string(channels);
  // Rounding of the output, of lse, and of gradients that are sums over the others.
  const bool is_wide = type == at::kFloat;
  const double of_out = is_wide ? 1e-5 : 2e-2, of_lse = is_wide ? 1e-5 : 1e-3;
  const double of_gradients = is_wide ? 1e-4 : 3e-2;
  const auto random = [&, channels = channels, tokens = offsets.back()](int64_t of_heads) {
    return at::randn({tokens, of_heads, channels}).to(type).to(device);
  };
  const at::Tensor fused = random(heads + 2 * kv_heads), dout = random(heads);
  const at::Tensor q = fused.narrow(1, 0, heads), k = fused.narrow(1, heads, kv_heads);
  const at::Tensor v = fused.narrow(1, heads + kv_heads, kv_heads);
  const auto leaf = [](const at::Tensor& x) { return wide(x).set_requires_grad(true); };
  const at::Tensor q64 = leaf(q), k64 = leaf(k), v64 = leaf(v);
  const reference::Attention expected =
      reference::attention(q64, k64, v64, offsets, 0.1, 0, sight.window, {}, sight.is_causal);
  torch::autograd::backward({expected.out}, {wide(dout)});
  const AttentionResult found = attention(q, k, v, {offsets, 0.1, sight});
  EXPECT_LT(relative_error(found.out, expected.out), of_out) << row;
  ASSERT_EQ(found.lse.sizes(), expected.lse.sizes()) << row;
  EXPECT_LT(relative_error(found.lse, expected.lse), of_lse) << row;
  // A query that sees one key moves nothing: what rounding leaves is compared with dv.
  const auto error = [&](const at::Tensor& gradient, const at::Tensor& of_double) {
    const double size = v64.grad().norm().item<double>();
    const bool is_zero = of_double.norm().item<double>() < 1e-12 * size;
    return is_zero ? wide(gradient).norm().item<double>() / size
                   : relative_error(gradient, of_double);
  };
  // A plan of cuDNN's serves every later call whose q, k and v look alike, however dout lies.
  const at::Tensor by_heads = dout.transpose(0, 1).contiguous().transpose(0, 1);
  for (const at::Tensor& upstream : {dout, by_heads}) {
    const AttentionGradients g =
        attention_backward(upstream, q, k, v, found, {offsets, 0.1, sight});
    EXPECT_LT(error(g.dq, q64.grad()), of_gradients) << row;
    EXPECT_LT(error(g.dk, k64.grad()), of_gradients) << row;
    EXPECT_LT(relative_error(g.dv, v64.grad()), of_gradients) << row;
  }
}

// Documents of one length go through cuDNN on later GPUs, any others through FlashAttention: both
// in one forward pass and in one backward pass each, which know nothing of each other.
TEST(Devices, AttendToDocumentsOfOneLength) {
  const std::vector<int64_t> equal = {0, 512, 1024}, others = {0, 500, 1024}, one = {0, 513};
  for (const at::Device device : devices_under_test()) {
    for (const Shape& shape : {Shape{4, 2, 128, equal}, Shape{4, 2, 128, others},
                               Shape{2, 1, 64, equal}, Shape{3, 3, 72, one}}) {
      expect_attention(device, shape, at::kBFloat16);
    }
  }
}

// Channels that are no multiple of 8 and those of the largest kernels, documents without tokens.
TEST(Devices, AttendWhateverTheChannels) {
  const std::vector<int64_t> offsets = {0, 0, 5, 6, 6, 77, 77};
  for (const at::Device device : devices_under_test()) {
    for (const at::ScalarType type : types_on({at::kFloat, at::kBFloat16}, false, device)) {
      for (const int64_t channels : {12, 160, 192, 256}) {
        expect_attention(device, {4, 2, channels, offsets}, type);
      }
    }
  }
}

// Documents of one length leave cuDNN's kernels where the window is shorter than they are.
TEST(Devices, AttendWithinAWindow) {
  const std::vector<int64_t> equal = {0, 512, 1024}, others = {0, 3, 70, 300};
  for (const at::Device device : devices_under_test()) {
    for (const at::ScalarType type : types_on({at::kFloat, at::kBFloat16}, false, device)) {
      for (const int64_t window : {2, 7, 64, 230}) {
        expect_attention(device, {4, 2, 24, others, {window}}, type);
      }
      expect_attention(device, {4, 2, 64, equal, {100}}, type);
      expect_attention(device, {4, 2, 64, equal, {512}}, type);
    }
  }
}

TEST(Devices, AttendBothWays) {
  const std::vector<int64_t> equal = {0, 512, 1024}, others = {0, 1, 3, 70, 70, 300};
  constexpr Sight kBothWays{.is_causal = false};
  for (const at::Device device : devices_under_test()) {
    for (const at::ScalarType type : types_on({at::kFloat, at::kBFloat16}, false, device)) {
      expect_attention(device, {4, 4, 12, others, kBothWays}, type);
      expect_attention(device, {4, 2, 64, equal, kBothWays}, type);
      for (const int64_t window : {1, 7, 100, 300, 512}) {
        const Sight sight{.window = window, .is_causal = false};
        expect_attention(device, {4, 4, 12, others, sight}, type);
        expect_attention(device, {4, 2, 64, equal, sight}, type);
      }
    }
  }
}

TEST(Devices, AttendFromACache) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(12);
    for (const auto& [queries, window] :
         {std::pair{1, 0}, {4, 0}, {30, 0}, {1, 5}, {4, 7}, {30, 1}}) {
      const at::Tensor q = at::randn({queries, 4, 16}).to(device);
      const at::Tensor k = at::randn({30, 2, 16}).to(device), v = at::randn({30, 2, 16}).to(device);
      const at::Tensor found = attention_with_cache(q, k, v, 0.25, window).out;
      const at::Tensor expected =
          reference::attention(wide(q), wide(k), wide(v), {0, 30}, 0.25, 30 - queries, window).out;
      EXPECT_LT(relative_error(found, expected), 1e-5)
          << device.str() << " " << queries << " " << window;
      if (!device.is_cuda()) continue;
      // 16 bits take another kernel there.
      const auto narrow = [](const at::Tensor& x) { return x.to(at::kBFloat16); };
      const at::Tensor rounded =
          attention_with_cache(narrow(q), narrow(k), narrow(v), 0.25, window).out;
      EXPECT_LT(relative_error(rounded, expected), 3e-2)
          << device.str() << " " << queries << " " << window;
    }
  }
}

}  // namespace
}  // namespace strata::ops
