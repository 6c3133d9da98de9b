// Attention: checks and choice of the device. The kernels are in attention_cpu.cpp and
// libtorch's (attention_cuda.cpp).
#include "strata/ops/attention/attention.h"

#include <algorithm>
#include <vector>

#include <ATen/Context.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/attention/attention_arguments.h"
#include "strata/ops/attention/attention_cuda.h"
#include "strata/ops/attention/biased_attention.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

namespace {

constexpr const char* kOp = "attention";

HeadsView view_of(const char* argument, const at::Tensor& tensor, const at::Tensor& like) {
  return heads_view(kOp, argument, tensor, like);
}

void check_offsets(std::span<const int64_t> offsets, int64_t tokens) {
  bool is_valid = !offsets.empty() && offsets.front() == 0 && offsets.back() == tokens;
  for (size_t d = 0; is_valid && d + 1 < offsets.size(); ++d) {
    is_valid = offsets[d] <= offsets[d + 1];
  }
  if (is_valid) return;
  throw InternalError("attention: found document offsets [{}], expected 0 .. {} in ascending order",
                      fmt::join(offsets, ", "), tokens);
}

cpu::AttentionArguments checked_arguments(const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionOptions& options) {
  check_heads(kOp, q, k, v);
  const Sight sight = options.sight;
  if (sight.window < 0) {
    throw InternalError("attention: found a window of {}, expected 0 or more", sight.window);
  }
  return {.type = element_of(kOp, "q", q),
          .q = view_of("q", q, q),
          .k = view_of("k", k, q),
          .v = view_of("v", v, q),
          .channels = q.size(2),
          .offsets = options.offsets,
          .scale = static_cast<float>(options.scale),
          .lse = nullptr,
          .tokens = q.size(0),
          .causal = sight.is_causal,
          .window = sight.window};
}

// The options with the window only where a document is longer.
AttentionOptions needed_options(const AttentionOptions& options) {
  const auto& offsets = options.offsets;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    if (offsets[d + 1] - offsets[d] > options.sight.window) return options;
  }
  AttentionOptions without = options;
  without.sight.window = 0;
  return without;
}

// On a GPU libtorch has no kernel for windows both ways in fp32: scores of padded documents.
bool takes_dense_scores(const at::Tensor& q, Sight needed) {
  return is_for_cuda(q) && q.scalar_type() == at::kFloat && needed.window > 0 && !needed.is_causal;
}

// Without empty documents, which have no scores.
std::vector<int64_t> without_empty(std::span<const int64_t> offsets) {
  std::vector<int64_t> kept(offsets.begin(), offsets.end());
  kept.erase(std::ranges::unique(kept).begin(), kept.end());
  return kept;
}

// `documents`: the offsets without_empty().
BiasedAttentionOptions dense_options(std::span<const int64_t> documents,
                                     const AttentionOptions& options) {
  return {.offsets = documents,
          .key_offsets = documents,
          .scale = options.scale,
          .causal = options.sight.is_causal,
          .window = options.sight.window};
}

AttentionResult result_of(const at::Tensor& q) {
  return {at::empty(q.sizes(), q.options()),
          at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat))};
}

// For the memory plan: the copies that the memory-efficient kernel for fp32 is given on a GPU. It
// reads contiguous heads, of keys and values as many as of queries.
std::vector<at::Tensor> imagine_copies(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v) {
  std::vector<at::Tensor> copies;
  if (q.scalar_type() != at::kFloat) return copies;
  for (const at::Tensor* x : {&q, &k, &v}) {
    if (x->is_contiguous() && x->size(1) == q.size(1)) continue;
    copies.push_back(at::empty({x->size(0), q.size(1), x->size(2)}, x->options()));
  }
  return copies;
}

// What libtorch's kernels for a GPU take beside the gradients, for the memory plan.
// FlashAttention 2 for 16-bit types: sums of dq in fp32, a row's sum, and the gradients of keys and
// values of every query head before those of a group are added.
// Where the same bits are asked for, the sums of dq are as many as keep all multiprocessors busy.
void imagine_backward_scratch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              std::span<const int64_t> offsets) {
  const std::vector<at::Tensor> copies = imagine_copies(q, k, v);
  const int64_t tokens = q.size(0), heads = q.size(1), channels = q.size(2);
  const int64_t padded = tokens + 128 * static_cast<int64_t>(offsets.size() - 1);
  const int64_t rounded = channels <= 128 ? (channels + 31) / 32 * 32 : (channels + 63) / 64 * 64;
  const auto fp32 = q.options().dtype(at::kFloat);
  constexpr int64_t kMultiprocessors = 132;  // of an H100
  const int64_t tasks = heads * static_cast<int64_t>(offsets.size() - 1);
  const bool is_repeatable =
      at::globalContext().deterministicAlgorithms() && q.scalar_type() != at::kFloat && tasks > 0;
  const int64_t sums = is_repeatable ? (kMultiprocessors + tasks - 1) / tasks : 1;
  std::vector<at::Tensor> scratch{at::empty({sums, padded, heads, rounded}, fp32),
                                  at::empty({heads, padded}, fp32)};
  if (k.size(1) != heads) {
    for (int i = 0; i < 2; ++i)
      scratch.push_back(at::empty({tokens, heads, channels}, q.options()));
  }
}

}  // namespace

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  cpu::AttentionArguments arguments = checked_arguments(q, k, v, options);
  check_offsets(options.offsets, q.size(0));
  check_offsets(options.offsets, k.size(0));
  const AttentionOptions needed = needed_options(options);
  if (takes_dense_scores(q, needed.sight)) {
    const std::vector<int64_t> documents = without_empty(options.offsets);
    return biased_attention(q, k, v, /*bias=*/{}, dense_options(documents, needed));
  }
  if constexpr (kHasCuda) {
    if (q.is_cuda()) return cuda::attention(q, k, v, needed);
  }
  AttentionResult result = result_of(q);
  if (q.is_meta()) {
    if (is_for_cuda(q)) imagine_copies(q, k, v);
    return result;
  }
  const ActivityTimer timer(Activity::kAttention);
  arguments.lse = result.lse.mutable_data_ptr<float>();
  cpu::attention(arguments, view_of("out", result.out, q));
  return result;
}

namespace {

void check_gradients(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const AttentionResult& forward,
                     const AttentionGradients& gradients) {
  check_shape(kOp, "lse", forward.lse, {q.size(1), q.size(0)});
  check_type(kOp, "lse", forward.lse, at::kFloat);
  check_contiguous(kOp, "lse", forward.lse);
  check_shape(kOp, "dout", dout, q.sizes());
  check_shape(kOp, "out", forward.out, q.sizes());
  check_shape(kOp, "dq", gradients.dq, q.sizes());
  check_shape(kOp, "dk", gradients.dk, k.sizes());
  check_shape(kOp, "dv", gradients.dv, v.sizes());
}

// On the CPU, and of the plan.
void write_gradients(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const AttentionResult& forward,
                     const AttentionOptions& options, const AttentionGradients& gradients) {
  cpu::AttentionArguments arguments = checked_arguments(q, k, v, options);
  check_offsets(options.offsets, q.size(0));
  check_offsets(options.offsets, k.size(0));
  check_gradients(dout, q, k, v, forward, gradients);
  if (q.is_meta()) {
    if (is_for_cuda(q)) imagine_backward_scratch(q, k, v, options.offsets);
    return;
  }
  const ActivityTimer timer(Activity::kAttention);
  arguments.lse = const_cast<float*>(forward.lse.const_data_ptr<float>());  // only read
  cpu::attention_backward(arguments, {.dout = view_of("dout", dout, q),
                                      .out = view_of("out", forward.out, q),
                                      .dq = view_of("dq", gradients.dq, q),
                                      .dk = view_of("dk", gradients.dk, q),
                                      .dv = view_of("dv", gradients.dv, q)});
}

}  // namespace

AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const AttentionResult& forward,
                                      const AttentionOptions& options) {
  const AttentionOptions needed = needed_options(options);
  if (takes_dense_scores(q, needed.sight)) {
    const std::vector<int64_t> documents = without_empty(options.offsets);
    const BiasedAttentionGradients g =
        biased_attention_backward(dout, q, k, v, /*bias=*/{}, forward,
                                  dense_options(documents, needed), /*wants_bias=*/false);
    return {g.dq, g.dk, g.dv};
  }
  if constexpr (kHasCuda) {
    if (q.is_cuda()) {
      checked_arguments(q, k, v, options);
      check_offsets(options.offsets, q.size(0));
      return cuda::attention_backward(dout, q, k, v, forward, needed);
    }
  }
  AttentionGradients gradients{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                               at::empty(v.sizes(), v.options())};
  write_gradients(dout, q, k, v, forward, options, gradients);
  return gradients;
}

void attention_backward_into(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionResult& forward,
                             const AttentionOptions& options, const AttentionGradients& gradients) {
  if (!q.is_cuda() && !(q.is_meta() && is_for_cuda(q))) {
    return write_gradients(dout, q, k, v, forward, options, gradients);
  }
  // PyTorch's kernels write where they like.
  check_gradients(dout, q, k, v, forward, gradients);
  const AttentionGradients made = attention_backward(dout, q, k, v, forward, options);
  gradients.dq.copy_(made.dq);
  gradients.dk.copy_(made.dk);
  gradients.dv.copy_(made.dv);
}

AttentionResult attention_with_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     double scale, int64_t window) {
  check_heads(kOp, q, k, v);
  if (q.size(0) > k.size(0)) {
    throw InternalError(
        "attention: found {} queries and {} keys, expected no more queries than keys", q.size(0),
        k.size(0));
  }
  const int64_t offsets[] = {0, k.size(0)};
  if constexpr (kHasCuda) {
    if (q.is_cuda()) {
      const AttentionOptions needed = needed_options({offsets, scale, {.window = window}});
      return cuda::attention_with_cache(q, k, v, scale, needed.sight.window);
    }
  }
  cpu::AttentionArguments arguments =
      checked_arguments(q, k, v, {offsets, scale, {.window = window}});
  arguments.key_lead = k.size(0) - q.size(0);
  AttentionResult result = result_of(q);
  arguments.lse = result.lse.mutable_data_ptr<float>();
  cpu::attention(arguments, view_of("out", result.out, q));
  return result;
}

}  // namespace strata::ops
