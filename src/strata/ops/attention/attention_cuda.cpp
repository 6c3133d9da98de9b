#include "strata/ops/attention/attention_cuda.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <mutex>

#include "strata/ops/attention/cudnn_attention_cuda.h"

namespace strata::ops::cuda {
namespace {

// Custom masks of the memory-efficient kernel.
constexpr int64_t kNoMask = 0, kCausal = 1, kCausalFromTheEnd = 2;
int64_t mask_of(Sight sight) { return sight.is_causal ? kCausal : kNoMask; }

// The offsets as the kernels want them: int32 on the device. All layers of a micro-batch ask for
// the same ones, and a copy to the device would hold the host up each time, so the last few are
// kept.
at::Tensor offsets_on_device(std::span<const int64_t> offsets, at::Device device) {
  struct Kept {
    std::vector<int64_t> values;
    at::Tensor on_device;
  };
  constexpr size_t kMost = 8;
  static std::mutex mutex;  // backward runs on a thread of autograd's
  static auto* kept = new std::list<Kept>;
  const std::lock_guard lock(mutex);
  for (auto entry = kept->begin(); entry != kept->end(); ++entry) {
    if (entry->on_device.device() != device || !std::ranges::equal(entry->values, offsets))
      continue;
    kept->splice(kept->begin(), *kept, entry);
    return entry->on_device;
  }
  const auto count = static_cast<int64_t>(offsets.size());
  const at::Tensor on_host =
      at::empty({count}, at::TensorOptions().dtype(at::kInt).pinned_memory(true));
  std::ranges::copy(offsets, on_host.mutable_data_ptr<int32_t>());
  kept->push_front({{offsets.begin(), offsets.end()}, on_host.to(device, /*non_blocking=*/true)});
  if (kept->size() > kMost) kept->pop_back();
  return kept->front().on_device;
}

int64_t longest(std::span<const int64_t> offsets) {
  int64_t most = 0;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    most = std::max(most, offsets[d + 1] - offsets[d]);
  }
  return most;
}

// The kernels want a multiple of 8 channels. Zeros change no product.
at::Tensor padded(const at::Tensor& x) {
  const int64_t missing = (8 - x.size(-1) % 8) % 8;
  return missing == 0 ? x : at::constant_pad_nd(x, {0, missing});
}

// The window as FlashAttention takes it: so many tokens before a query are seen, so many after it.
struct FlashWindow {
  std::optional<int64_t> left, right;
  explicit FlashWindow(Sight sight) {
    if (sight.window == 0) return;
    left = sight.window - 1;
    right = sight.is_causal ? 0 : *left;
  }
};
// And the memory-efficient kernel: so many tokens with the query's own.
std::optional<int64_t> efficient_window(int64_t window) {
  return window == 0 ? std::nullopt : std::optional(window);
}

bool uses_flash(const at::Tensor& q) { return q.scalar_type() != at::kFloat; }

// The memory-efficient kernel knows no grouped heads: [T, Hkv, D] becomes [1, T, Hq, D].
at::Tensor repeated(const at::Tensor& x, int64_t heads) {
  const int64_t times = heads / x.size(1);
  const at::Tensor all = times == 1 ? x : x.repeat_interleave(times, /*dim=*/1);
  return all.contiguous().unsqueeze(0);
}

// [1, T, Hq, D] back to [T, Hkv, D]: the gradients of a group are added.
at::Tensor summed(const at::Tensor& x, int64_t heads) {
  const at::Tensor all = x.squeeze(0);
  if (all.size(1) == heads) return all;
  return all.view({all.size(0), heads, all.size(1) / heads, all.size(2)}).sum(2);
}

struct Efficient {
  at::Tensor out, lse;
};

// The memory-efficient kernel's [documents, Hq, longest, rounded up] as [Hq, T] and back. What lies
// beyond a document's end is infinite there.
at::Tensor packed_lse(const at::Tensor& lse, std::span<const int64_t> offsets) {
  std::vector<at::Tensor> parts;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    parts.push_back(lse[static_cast<int64_t>(d)].narrow(1, 0, offsets[d + 1] - offsets[d]));
  }
  return at::cat(parts, 1);
}
at::Tensor unpacked_lse(const at::Tensor& lse, std::span<const int64_t> offsets) {
  const auto documents = static_cast<int64_t>(offsets.size()) - 1;
  const int64_t length = (longest(offsets) + 31) / 32 * 32;
  at::Tensor result = at::full({documents, lse.size(0), length}, INFINITY, lse.options());
  for (int64_t d = 0; d < documents; ++d) {
    const auto at = static_cast<size_t>(d);
    const int64_t count = offsets[at + 1] - offsets[at];
    result[d].narrow(1, 0, count).copy_(lse.narrow(1, offsets[at], count));
  }
  return result;
}

Efficient efficient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    std::span<const int64_t> q_offsets, std::span<const int64_t> k_offsets,
                    int64_t mask, double scale, int64_t window) {
  const auto result = at::_efficient_attention_forward(
      q.contiguous().unsqueeze(0), repeated(k, q.size(1)), repeated(v, q.size(1)),
      /*bias=*/std::nullopt, offsets_on_device(q_offsets, q.device()),
      offsets_on_device(k_offsets, q.device()), longest(q_offsets), longest(k_offsets),
      /*dropout_p=*/0.0, mask, /*compute_log_sumexp=*/true, scale, /*seqlen_k=*/std::nullopt,
      efficient_window(window));
  return {std::get<0>(result).squeeze(0), std::get<1>(result)};
}

AttentionResult attention_of_padded(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const AttentionOptions& options) {
  const auto& [offsets, scale, sight] = options;
  if (q.size(0) == 0)
    return {at::empty_like(q), at::empty({q.size(1), 0}, q.options().dtype(at::kFloat))};
  if (!uses_flash(q)) {
    const Efficient result =
        efficient(q, k, v, offsets, offsets, mask_of(sight), scale, sight.window);
    return {result.out, packed_lse(result.lse, offsets)};
  }
  const at::Tensor on_device = offsets_on_device(offsets, q.device());
  const int64_t most = longest(offsets);
  const FlashWindow flash(sight);
  const auto result = at::_flash_attention_forward(
      q, k, v, on_device, on_device, most, most, /*dropout_p=*/0.0, sight.is_causal,
      /*return_debug_mask=*/false, scale, flash.left, flash.right);
  return {std::get<0>(result), std::get<1>(result)};
}

AttentionGradients backward_of_padded(const at::Tensor& dout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const AttentionResult& forward,
                                      const AttentionOptions& options) {
  if (q.size(0) == 0) return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const auto& [offsets, scale, sight] = options;
  const auto& [out, lse] = forward;
  const at::Tensor on_device = offsets_on_device(offsets, q.device());
  const int64_t most = longest(offsets);
  // Without dropout nothing is read of the generator's state, but its place must exist; filling it
  // would be a launch a layer.
  if (uses_flash(q)) {
    const at::Tensor state = at::empty({2}, q.options().dtype(at::kUInt64));
    const at::Tensor unused = at::empty({0}, q.options().dtype(at::kUInt64));
    const FlashWindow flash(sight);
    auto [dq, dk, dv] = at::_flash_attention_backward(
        dout.contiguous(), q, k, v, out, lse, on_device, on_device, most, most, /*dropout_p=*/0.0,
        sight.is_causal, state, unused, scale, flash.left, flash.right);
    return {dq, dk, dv};
  }
  const at::Tensor state = at::empty({}, q.options().dtype(at::kLong));
  const auto gradients = at::_efficient_attention_backward(
      dout.contiguous().unsqueeze(0), q.contiguous().unsqueeze(0), repeated(k, q.size(1)),
      repeated(v, q.size(1)), /*bias=*/std::nullopt, out.contiguous().unsqueeze(0), on_device,
      on_device, most, most, unpacked_lse(lse, offsets), /*dropout_p=*/0.0, state, state,
      mask_of(sight), /*bias_requires_grad=*/false, scale, /*num_splits_key=*/std::nullopt,
      efficient_window(sight.window));
  return {std::get<0>(gradients).squeeze(0), summed(std::get<1>(gradients), k.size(1)),
          summed(std::get<2>(gradients), v.size(1))};
}

AttentionResult cached_of_padded(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 double scale, int64_t window) {
  const int64_t q_offsets[] = {0, q.size(0)}, k_offsets[] = {0, k.size(0)};
  if (!uses_flash(q)) {
    const Efficient result =
        efficient(q, k, v, q_offsets, k_offsets, kCausalFromTheEnd, scale, window);
    return {result.out, packed_lse(result.lse, q_offsets)};
  }
  // Flash attention counts its causal mask from the end of both sequences.
  const FlashWindow flash({.window = window});
  const auto result = at::_flash_attention_forward(
      q, k, v, offsets_on_device(q_offsets, q.device()), offsets_on_device(k_offsets, q.device()),
      q.size(0), k.size(0), /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false,
      scale, flash.left, flash.right);
  return {std::get<0>(result), std::get<1>(result)};
}

}  // namespace

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  const at::NoGradGuard no_grad;  // the backward is called by hand
  if (const auto length = length_for_cudnn(q, options.offsets, options.sight)) {
    if (auto result = cudnn_attention(q, k, v, *length, options.scale)) return *result;
  }
  const int64_t channels = q.size(2);
  AttentionResult result = attention_of_padded(padded(q), padded(k), padded(v), options);
  result.out = result.out.narrow(2, 0, channels).contiguous();
  return result;
}

AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const AttentionResult& forward,
                                      const AttentionOptions& options) {
  if (const auto length = length_for_cudnn(q, options.offsets, options.sight)) {
    if (auto g = cudnn_attention_backward(dout, q, k, v, forward, *length, options.scale))
      return *g;
  }
  const int64_t channels = q.size(2);
  const AttentionGradients g = backward_of_padded(padded(dout), padded(q), padded(k), padded(v),
                                                  {padded(forward.out), forward.lse}, options);
  const auto cut = [&](const at::Tensor& x) { return x.narrow(2, 0, channels).contiguous(); };
  return {cut(g.dq), cut(g.dk), cut(g.dv)};
}

AttentionResult attention_with_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     double scale, int64_t window) {
  const at::NoGradGuard no_grad;
  AttentionResult result = cached_of_padded(padded(q), padded(k), padded(v), scale, window);
  result.out = result.out.narrow(2, 0, q.size(2)).contiguous();
  return result;
}

}  // namespace strata::ops::cuda
