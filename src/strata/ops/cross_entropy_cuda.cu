// Cross-entropy on NVIDIA GPUs: a block a row, which it reads for the sums and again for the
// gradient, with smoothing once more between: from the cache alone where the rows of all blocks fit
// into it. Never: checks.
#include <cfloat>

#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 512;

// 0 * -inf would be NaN.
__device__ inline float bounded(float distance) { return fmaxf(distance, -1e4f); }

// A row of logits, of which each thread has every kThreads-th pack. kCapped: each time that a logit
// is read, it is capped.
template <typename T, int N, bool kCapped>
struct Row {
  T* x;
  int64_t vocabulary;
  float softcap;

  __device__ float capped(T logit) const {
    const float value = to_float(logit);
    if constexpr (kCapped) return softcap * tanhf(value / softcap);
    return value;
  }
  __device__ float at(int64_t i) const { return capped(x[i]); }

  // The derivative of a capped logit.
  __device__ float slope(float value) const {
    if constexpr (!kCapped) return 1.0f;
    const float t = value / softcap;
    return 1.0f - t * t;
  }

  // use(i): of every pack of the thread, the place of its first logit.
  template <typename Use>
  __device__ void for_each_pack(const Use& use) const {
    for (int64_t i = int64_t{N} * threadIdx.x; i < vocabulary; i += int64_t{N} * kThreads) use(i);
  }
  __device__ bool has_pack_of(int64_t i) const { return i / N % kThreads == threadIdx.x; }
};

// What a thread sums of its logits x, from the largest of them so far.
struct Sums {
  float max = -FLT_MAX;                 // finite, so that -inf is away from it by -inf, not NaN
  float exp_sum = 0, weighted_sum = 0;  // of e = exp(x - max), of e * (x - max)
  int64_t first = 0;                    // the first pack with `max`

  // NaN and infinity make the sums NaN: `max` leaves NaN out.
  template <typename T, int N>
  __device__ void add(const float (&values)[N], int64_t pack) {
    float largest = values[0];
#pragma unroll
    for (int k = 1; k < N; ++k) largest = fmaxf(largest, values[k]);
    if (largest > max) {
      move_to(largest);
      first = pack;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float distance = values[k] - max, e = exp_to<T>(distance);
      exp_sum += e;
      weighted_sum += e * bounded(distance);
    }
  }

  __device__ void move_to(float larger) {
    const float distance = bounded(max - larger), factor = expf(distance);
    weighted_sum = factor * (weighted_sum + distance * exp_sum);
    exp_sum *= factor;
    max = larger;
  }
};

template <typename T, int N, bool kCapped>
__device__ inline Sums own_sums(const Row<T, N, kCapped>& row) {
  Sums sums;
  row.for_each_pack([&](int64_t i) {
    const Pack<T, N> pack = load<T, N>(row.x + i);
    float values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = row.capped(pack.v[k]);
    if (i + N > row.vocabulary) {  // what lies between rows counts for nothing
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (i + k >= row.vocabulary) values[k] = -INFINITY;
      }
    }
    sums.template add<T>(values, i);
  });
  return sums;
}

// Of the whole row, known to every thread.
struct RowSums {
  float max;
  double exp_sum, weighted_sum;
  bool is_largest_before_target;
};

template <typename T, int N, bool kCapped>
__device__ inline RowSums row_sums(const Row<T, N, kCapped>& row, int64_t target) {
  Sums own = own_sums(row);
  const float max = block_max(own.max);
  bool is_before = own.max == max && own.first + N <= target;
  if (threadIdx.x == 0) {
    for (int64_t i = target - target % N; i < target; ++i) is_before |= row.at(i) == max;
  }
  own.move_to(max);
  return {max, block_sum(static_cast<double>(own.exp_sum)),
          block_sum(static_cast<double>(own.weighted_sum)), block_sum(is_before ? 1.0f : 0.0f) > 0};
}

// The mean of x - max.
template <typename T, int N, bool kCapped>
__device__ inline double mean_distance(const Row<T, N, kCapped>& row, float max) {
  float sum = 0;
  row.for_each_pack([&](int64_t i) {
    for (int64_t j = i; j < i + N && j < row.vocabulary; ++j) sum += bounded(row.at(j) - max);
  });
  return block_sum(static_cast<double>(sum)) / static_cast<double>(row.vocabulary);
}

template <typename T, int N, bool kCapped>
__device__ inline void clear(const Row<T, N, kCapped>& row) {
  row.for_each_pack([&](int64_t i) {
    if (i + N <= row.vocabulary) return store<T, N>(row.x + i, Pack<T, N>{});
    for (int64_t j = i; j < row.vocabulary; ++j) row.x[j] = T{};
  });
}

// Requires: barriers since the last thread has read a logit.
template <typename T, int N, bool kCapped>
__device__ inline void write_gradient(const Row<T, N, kCapped>& row, const RowSums& sums,
                                      int64_t target, float target_logit, float scale,
                                      float smoothing) {
  const double of_all = scale / sums.exp_sum;
  const auto factor = static_cast<float>(of_all);
  // What smoothing gives every token, which the target has of it besides.
  const float shared = scale * smoothing / static_cast<float>(row.vocabulary);
  row.for_each_pack([&](int64_t i) {
    Pack<T, N> pack = load<T, N>(row.x + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {  // also between rows, where nobody reads
      const float value = row.capped(pack.v[k]);
      const float gradient = exp_to<T>(value - sums.max) * factor - shared;
      pack.v[k] = from_float<T>(gradient * row.slope(value));
    }
    store<T, N>(row.x + i, pack);
  });
  if (!row.has_pack_of(target)) return;
  // After the thread's own store. Of a sure target the share less 1 would be rounding alone.
  const float e = exp_to<T>(target_logit - sums.max);
  const auto share = static_cast<float>((e - sums.exp_sum) * of_all);
  row.x[target] = from_float<T>((share + (scale * smoothing - shared)) * row.slope(target_logit));
}

__device__ inline CrossEntropyRow result_of(const RowSums& sums, float target_logit, double mean,
                                            float smoothing) {
  const double log_sum = log(sums.exp_sum);
  double distance = static_cast<double>(target_logit) - static_cast<double>(sums.max);
  distance += smoothing * (mean - distance);
  return {static_cast<float>(log_sum - distance),
          static_cast<float>(log_sum - sums.weighted_sum / sums.exp_sum),
          target_logit == sums.max && !sums.is_largest_before_target ? 1 : 0, 1};
}

template <typename T, int N, bool kCapped>
__global__ void __launch_bounds__(kThreads)
    row_loss(T* logits, const int64_t* __restrict__ targets, int64_t vocabulary, int64_t stride,
             float scale, bool want_gradient, CrossEntropyOptions o,
             CrossEntropyRow* __restrict__ rows) {
  const Row<T, N, kCapped> row{logits + int64_t{blockIdx.x} * stride, vocabulary, o.softcap};
  const int64_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) rows[blockIdx.x] = {0.0f, 0.0f, 0, 0};
    if (want_gradient) clear(row);
    return;
  }
  const float target_logit = row.at(target);
  const RowSums sums = row_sums(row, target);
  const double mean = o.smoothing > 0 ? mean_distance(row, sums.max) : 0.0;
  if (threadIdx.x == 0) rows[blockIdx.x] = result_of(sums, target_logit, mean, o.smoothing);
  if (want_gradient) write_gradient(row, sums, target, target_logit, scale, o.smoothing);
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
