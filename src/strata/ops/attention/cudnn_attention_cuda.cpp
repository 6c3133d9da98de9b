#include "strata/ops/attention/cudnn_attention_cuda.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "strata/ops/attention/cudnn_compiler_cuda.h"
#include "strata/ops/compute_capability.h"

namespace strata::ops::cuda {
namespace {

// Shorter documents have too little to do for either kernel to matter.
constexpr int64_t kLeastLength = 512;
// Rows of a tile of its backward pass, which is said to give NaN where a last one is half full
// (pytorch issue 196678).
constexpr int64_t kTileRows = 128;

// Set by the first shape that it does not take, or by a library that is not there. Nothing is asked
// of it from then on: what libtorch keeps of a plan that could not be made would end the program
// when it is used.
std::atomic<bool> has_refused{false};

struct Refusal {
  std::mutex mutex;
  std::string text;
};
Refusal& refusal() {
  static auto* first = new Refusal;
  return *first;
}
void note_refusal(const c10::Error& error) {
  const std::lock_guard lock(refusal().mutex);
  if (refusal().text.empty()) refusal().text = error.what_without_backtrace();
  has_refused.store(true, std::memory_order_relaxed);
}

bool is_wanted() {
  static const bool wants_flash = [] {
    const char* choice = std::getenv("STRATA_ATTENTION");
    return choice != nullptr && std::string_view(choice) == "flash";
  }();
  return !wants_flash && !has_refused.load(std::memory_order_relaxed);
}

// H100 and H200. On what comes after it is said to be slower than FlashAttention, and to give wrong
// values for few heads of keys (pytorch issue 193893).
bool is_hopper(at::Device device) { return compute_capability_major(device.index()) == 9; }

// [T, H, D] as [B, H, S, D], a view.
at::Tensor as_batch(const at::Tensor& x, int64_t length) {
  return x.unflatten(0, {-1, length}).transpose(1, 2);
}
// [B, H, S, D] back to [T, H, D], contiguous.
at::Tensor as_tokens(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1).contiguous(); }

// The statistics of a row: [B, H, S, 1] there, [H, T] here.
at::Tensor lse_of_tokens(const at::Tensor& x) {
  return x.reshape({x.size(0), x.size(1), x.size(2)}).transpose(0, 1).flatten(1).contiguous();
}
at::Tensor lse_of_batch(const at::Tensor& lse, int64_t length) {
  return lse.unflatten(1, {-1, length}).transpose(0, 1).contiguous().unsqueeze(-1);
}

template <typename Result, typename Work>
std::optional<Result> unless_refused(const Work& work) {
  try {
    load_compiler_of_cudnn();
    return work();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;  // of a kernel before this one
  } catch (const c10::Error& error) {
    note_refusal(error);
    return std::nullopt;
  }
}

}  // namespace

std::string cudnn_refusal() {
  const std::lock_guard lock(refusal().mutex);
  return refusal().text;
}

std::optional<int64_t> length_for_cudnn(const at::Tensor& q, std::span<const int64_t> offsets,
                                        Sight sight) {
  const int64_t channels = q.size(2);
  if (sight.window != 0 || !sight.is_causal || q.scalar_type() == at::kFloat || channels % 8 != 0 ||
      channels < 64 || channels > 128 || offsets.size() < 2 || !is_wanted() ||
      at::globalContext().deterministicAlgorithms()) {
    return std::nullopt;
  }
  const int64_t length = offsets[1] - offsets[0];
  if (length < kLeastLength || length % kTileRows != 0) return std::nullopt;
  for (size_t d = 1; d + 1 < offsets.size(); ++d) {
    if (offsets[d + 1] - offsets[d] != length) return std::nullopt;
  }
  return is_hopper(q.device()) ? std::optional(length) : std::nullopt;
}

std::optional<AttentionResult> cudnn_attention(const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v, int64_t length, double scale) {
  return unless_refused<AttentionResult>([&]() -> AttentionResult {
    const auto result = at::_scaled_dot_product_cudnn_attention(
        as_batch(q, length), as_batch(k, length), as_batch(v, length), /*attn_bias=*/std::nullopt,
        /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, /*is_causal=*/true,
        /*return_debug_mask=*/false, scale);
    return {as_tokens(std::get<0>(result)), lse_of_tokens(std::get<1>(result))};
  });
}

std::optional<AttentionGradients> cudnn_attention_backward(const at::Tensor& dout,
                                                           const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v,
                                                           const AttentionResult& forward,
                                                           int64_t length, double scale) {
  return unless_refused<AttentionGradients>([&]() -> AttentionGradients {
    // Without dropout nothing is read of the generator's state, but its place must exist.
    const at::Tensor state = at::empty({}, q.options().dtype(at::kLong));
    const at::Tensor none;
    // libtorch keeps a plan by the sizes and strides of q, k and v alone, and runs it whatever
    // those of the others are: they must be the same in every call.
    const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        as_batch(dout.contiguous(), length), as_batch(q, length), as_batch(k, length),
        as_batch(v, length), as_batch(forward.out.contiguous(), length),
        lse_of_batch(forward.lse, length), state, state, /*attn_bias=*/none,
        /*cum_seq_q=*/none, /*cum_seq_k=*/none, length, length, /*dropout_p=*/0.0,
        /*is_causal=*/true, scale);
    return {as_tokens(dq), as_tokens(dk), as_tokens(dv)};
  });
}

}  // namespace strata::ops::cuda
