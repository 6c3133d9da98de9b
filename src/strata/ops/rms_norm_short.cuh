// RMSNorm of many short rows, such as those of heads: a warp a row, which stays in registers.
// rms_norm_cuda.cu chooses. Owns: declarations. Never: a public function of ops.
#pragma once

#include <initializer_list>

#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"
#include "strata/ops/row_parts.cuh"

namespace strata::ops::cuda {

// Whether rows are short, and packs of four elements lie where they can be read at once.
bool are_short_rows(const RmsNormArguments& a, std::initializer_list<const void*> others);

// As rms_norm() and rms_norm_backward() without its last sum. Requires: are_short_rows().
void rms_norm_short(const RmsNormArguments& a, void* y, double eps, Stream stream);
void rms_norm_short_backward(const RmsNormArguments& a, const RmsNormGradients& g, float* partials,
                             Stream stream);

// The sum of `count` rows of partial sums, fp32 [count, channels], written or added to `data`.
struct Partials {
  const float* sums;
  int64_t count, channels;
};
struct WeightGradient {
  Element type;
  void* data;
  bool add;
};
void sum_partials(const char* name, const Partials& partials, const WeightGradient& gradient,
                  Stream stream);

// What x * rstd is multiplied by.
template <RmsNormKind kKind>
__device__ inline float factor_of(float weight) {
  return kKind == RmsNormKind::kGemma ? 1.0f + weight : weight;
}

// y before it is rounded, of x * rstd and a factor. Llama rounds before the weight.
template <typename T, RmsNormKind kKind>
__device__ inline float weighted(float normed, float factor) {
  if constexpr (kKind != RmsNormKind::kLlama) return normed * factor;
  return to_float(from_float<T>(normed)) * factor;
}

// Calls use<kind>() with the norm's kind.
template <typename Use>
void with_kind(RmsNormKind kind, const Use& use) {
  switch (kind) {
    case RmsNormKind::kLlama:
      return use.template operator()<RmsNormKind::kLlama>();
    case RmsNormKind::kGemma:
      return use.template operator()<RmsNormKind::kGemma>();
    case RmsNormKind::kOlmo:
      return use.template operator()<RmsNormKind::kOlmo>();
  }
}

// Calls use<P, kind>() with as many packs as a lane needs.
template <typename Use>
void with_packs(int64_t channels, RmsNormKind kind, const Use& use) {
  with_kind(kind, [&]<RmsNormKind kKind>() {
    if (channels <= row_parts::kOfPack) {
      use.template operator()<1, kKind>();
    } else if (channels <= 2 * row_parts::kOfPack) {
      use.template operator()<2, kKind>();
    } else {
      use.template operator()<row_parts::kMostPacks, kKind>();
    }
  });
}

// 1 / sqrt(mean + eps).
__device__ inline float inverse_root(float square_sum, int64_t channels, double eps) {
  return 1.0f / sqrtf(square_sum / static_cast<float>(channels) + static_cast<float>(eps));
}

}  // namespace strata::ops::cuda
