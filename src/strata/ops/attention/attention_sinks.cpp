#include "strata/ops/attention/attention_sinks.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/parallel_for.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/check.h"
#include "strata/ops/element.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "attention sinks";
constexpr int64_t kGrain = 64;  // tokens worth a thread

void check(const AttentionResult& result, const at::Tensor& sinks) {
  const int64_t tokens = result.out.size(0), heads = result.out.size(1);
  check_shape(kOp, "lse", result.lse, {heads, tokens});
  check_shape(kOp, "sinks", sinks, {heads});
  check_contiguous(kOp, "out", result.out);
}

// log(e^a + e^b).
float log_add_exp(float a, float b) {
  return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

// In place, where ATen would convert a bf16 tensor as a whole.
void scale_on_host(const AttentionResult& result, const float* sinks) {
  const Element type = element_of(kOp, "out", result.out);
  const int64_t tokens = result.out.size(0), heads = result.out.size(1);
  const int64_t channels = result.out.size(2);
  void* out = result.out.mutable_data_ptr();
  float* lse = result.lse.mutable_data_ptr<float>();
  at::parallel_for(0, tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(channels));
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        float& of_row = lse[h * tokens + t];
        const float both = log_add_exp(of_row, sinks[h]);
        const float factor = std::exp(of_row - both);
        void* row = at_index(type, out, (t * heads + h) * channels);
        const float* from = read_row(type, row, channels, scratch.data());
        float* to = begin_row(type, row, scratch.data());
        for (int64_t d = 0; d < channels; ++d) to[d] = factor * from[d];
        finish_row(type, to, channels, row);
        of_row = both;
      }
    }
  });
}

at::Tensor gradient_on_host(const at::Tensor& dout, const AttentionResult& result,
                            const float* sinks) {
  const Element type = element_of(kOp, "out", result.out);
  const int64_t tokens = result.out.size(0), heads = result.out.size(1);
  const int64_t channels = result.out.size(2);
  const void *dout_data = dout.const_data_ptr(), *out_data = result.out.const_data_ptr();
  const float* lse = result.lse.const_data_ptr<float>();
  at::Tensor gradient = at::empty({heads}, result.lse.options());
  float* sums = gradient.mutable_data_ptr<float>();
  at::parallel_for(0, heads, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(2 * channels));
    for (int64_t h = begin; h < end; ++h) {
      double sum = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t at = (t * heads + h) * channels;
        const float* dy = read_row(type, at_index(type, dout_data, at), channels, scratch.data());
        const float* y =
            read_row(type, at_index(type, out_data, at), channels, scratch.data() + channels);
        float product = 0;
        for (int64_t d = 0; d < channels; ++d) product += dy[d] * y[d];
        sum -= std::exp(sinks[h] - lse[h * tokens + t]) * product;
      }
      sums[h] = static_cast<float>(sum);
    }
  });
  return gradient;
}

}  // namespace

void add_attention_sinks_(const AttentionResult& result, const at::Tensor& sinks) {
  check(result, sinks);
  const ActivityTimer timer(Activity::kAttention);
  const at::NoGradGuard no_grad;
  const at::Tensor of_heads = sinks.to(at::kFloat);
  if (result.out.is_cpu()) return scale_on_host(result, of_heads.const_data_ptr<float>());
  if (result.out.is_meta()) return;
  const at::Tensor both = at::logaddexp(result.lse, of_heads.unsqueeze(1));
  result.out.mul_((result.lse - both).exp_().t().unsqueeze(2));
  result.lse.copy_(both);
}

at::Tensor attention_sinks_gradient(const at::Tensor& dout, const AttentionResult& result,
                                    const at::Tensor& sinks) {
  check(result, sinks);
  check_shape(kOp, "dout", dout, result.out.sizes());
  check_contiguous(kOp, "dout", dout);
  const ActivityTimer timer(Activity::kAttention);
  const at::Tensor of_heads = sinks.to(at::kFloat);
  if (result.out.is_cpu()) {
    return gradient_on_host(dout, result, of_heads.const_data_ptr<float>());
  }
  if (result.out.is_meta() && !is_for_cuda(result.out)) return at::empty_like(of_heads);
  const at::Tensor products = (dout.to(at::kFloat) * result.out).sum(at::IntArrayRef{2});
  return (of_heads.unsqueeze(1) - result.lse)
      .exp_()
      .mul_(products.t())
      .sum(at::IntArrayRef{1})
      .neg_();
}

}  // namespace strata::ops
