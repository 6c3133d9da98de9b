// Cross-entropy on NVIDIA GPUs: a block a row, which it reads three times: from the cache alone
// where the rows of all blocks fit into it. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 512;

// exp and its weighted sum of one logit; 0 * -inf would be NaN.
__device__ inline float bounded(float x, float max) { return fmaxf(x - max, -1e4f); }

// kCapped: each time that a logit is read, it is capped.
template <bool kCapped>
__device__ inline float capped(float x, const CrossEntropyOptions& o) {
  if constexpr (kCapped) return o.softcap * tanhf(x / o.softcap);
  return x;
}

template <typename T, int N, bool kCapped>
__global__ void __launch_bounds__(kThreads)
    row_loss(T* __restrict__ logits, const int64_t* __restrict__ targets, int64_t vocabulary,
             int64_t stride, float scale, bool want_gradient, CrossEntropyOptions o,
             CrossEntropyRow* __restrict__ rows) {
  T* x = logits + int64_t{blockIdx.x} * stride;
  const int64_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) rows[blockIdx.x] = {0.0f, 0.0f, 0, 0};
    if (!want_gradient) return;
    for (int64_t i = threadIdx.x; i < vocabulary; i += kThreads) x[i] = from_float<T>(0.0f);
    return;
  }
  float largest = -INFINITY, broken = 0;
  for (int64_t i = int64_t{N} * threadIdx.x; i < vocabulary; i += int64_t{N} * kThreads) {
    const Pack<T, N> pack = load<T, N>(x + i);
    for (int k = 0; k < N; ++k) {
      if (i + k >= vocabulary) continue;  // between rows
      const float value = capped<kCapped>(to_float(pack.v[k]), o);
      largest = fmaxf(largest, value);  // leaves NaN out, hence `broken`
      broken += value != value || value == INFINITY ? 1.0f : 0.0f;
    }
  }
  const float max = block_max(largest);
  const bool is_broken = block_sum(broken) > 0;
  const float target_logit = capped<kCapped>(to_float(x[target]), o);
  float exp_sum = 0, weighted_sum = 0, earlier = 0, distances = 0;
  for (int64_t i = int64_t{N} * threadIdx.x; i < vocabulary; i += int64_t{N} * kThreads) {
    const Pack<T, N> pack = load<T, N>(x + i);
    for (int k = 0; k < N; ++k) {
      if (i + k >= vocabulary) continue;
      const float value = capped<kCapped>(to_float(pack.v[k]), o);
      const float d = bounded(value, max), e = expf(d);
      distances += d;
      exp_sum += e;
      weighted_sum += e * d;
      earlier += i + k < target && value == max ? 1.0f : 0.0f;
    }
  }
  const double sum = block_sum(static_cast<double>(exp_sum));
  const double weighted = block_sum(static_cast<double>(weighted_sum));
  const bool is_first = block_sum(earlier) == 0;
  const double mean =
      o.smoothing > 0 ? block_sum(static_cast<double>(distances)) / static_cast<double>(vocabulary)
                      : 0.0;
  if (threadIdx.x == 0) {
    const double log_sum = log(sum);
    double distance = static_cast<double>(target_logit) - static_cast<double>(max);
    distance += o.smoothing * (mean - distance);
    const double loss = log_sum - distance;
    rows[blockIdx.x] = {is_broken ? NAN : static_cast<float>(loss),
                        static_cast<float>(log_sum - weighted / sum),
                        target_logit == max && is_first ? 1 : 0, 1};
  }
  if (!want_gradient) return;
  const double of_all = is_broken ? NAN : scale / sum;
  const auto factor = static_cast<float>(of_all);
  // What smoothing gives the target less, and every token.
  const float shared = scale * o.smoothing / static_cast<float>(vocabulary);
  const float of_target = scale * o.smoothing - shared;
  // The target's logit was read by all threads: the sums above are barriers.
  for (int64_t i = int64_t{N} * threadIdx.x; i < vocabulary; i += int64_t{N} * kThreads) {
    Pack<T, N> pack = load<T, N>(x + i);
    for (int k = 0; k < N; ++k) {  // also between rows, where nobody reads
      const float value = capped<kCapped>(to_float(pack.v[k]), o);
      const float e = expf(bounded(value, max));
      // Of a sure target the share less 1 would be rounding alone.
      float gradient = i + k == target ? static_cast<float>((e - sum) * of_all) : e * factor;
      if (o.smoothing > 0) gradient += i + k == target ? of_target : -shared;
      if constexpr (kCapped) {
        const float t = value / o.softcap;
        gradient *= 1.0f - t * t;
      }
      pack.v[k] = from_float<T>(gradient);
    }
    store<T, N>(x + i, pack);
  }
}

}  // namespace

void cross_entropy(const Logits& logits, const int64_t* targets, float scale, bool want_gradient,
                   const CrossEntropyOptions& options, CrossEntropyRow* row, Stream stream) {
  if (logits.rows == 0 || logits.vocabulary == 0) return;
  with_type(logits.type, [&](auto zero) {
    using T = decltype(zero);
    // The last pack of a row may reach into what lies between rows.
    const bool is_wide = logits.stride % kWide<T> == 0 && is_aligned(logits.data);
    const auto kernel = [&]<bool kCapped>() {
      return is_wide ? row_loss<T, kWide<T>, kCapped> : row_loss<T, 1, kCapped>;
    };
    launch("cross_entropy",
           options.softcap > 0 ? kernel.template operator()<true>()
                               : kernel.template operator()<false>(),
           {logits.rows, kThreads}, stream, static_cast<T*>(logits.data), targets,
           logits.vocabulary, logits.stride, scale, want_gradient, options, row);
  });
}

}  // namespace strata::ops::cuda
