// The clamped SwiGLU on NVIDIA GPUs: a thread does some pairs that lie side by side. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct Clamped {
  float gate, up, sigmoid;
  // Written so that a NaN stays one.
  __device__ inline Clamped(float g, float u, const ClampedGate& by)
      : gate(g > by.limit ? by.limit : g),
        up(u > by.limit    ? by.limit
           : u < -by.limit ? -by.limit
                           : u),
        sigmoid(1.0f / (1.0f + expf(-by.alpha * gate))) {}
};

// N pairs; a single one may lie at any element.
template <typename T, int N>
__device__ inline Pack<T, 2 * N> load_pairs(const T* from) {
  if constexpr (N == 1) {
    return {{from[0], from[1]}};
  } else {
    return load<T, 2 * N>(from);
  }
}
template <typename T, int N>
__device__ inline void store_pairs(T* to, const Pack<T, 2 * N>& pairs) {
  if constexpr (N == 1) {
    to[0] = pairs.v[0];
    to[1] = pairs.v[1];
  } else {
    store<T, 2 * N>(to, pairs);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    clamped_packs(const T* __restrict__ gate_up, T* __restrict__ y, int64_t pairs, ClampedGate by) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (first >= pairs) return;
  const Pack<T, 2 * N> both = load_pairs<T, N>(gate_up + 2 * first);
  Pack<T, N> out;
  for (int k = 0; k < N; ++k) {
    const Clamped at(to_float(both.v[2 * k]), to_float(both.v[2 * k + 1]), by);
    out.v[k] = from_float<T>((at.up + 1.0f) * at.gate * at.sigmoid);
  }
  store<T, N>(y + first, out);
}

// Each pack is read before it is written.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    clamped_packs_backward(T* gate_up, const T* __restrict__ dy, int64_t pairs, ClampedGate by) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (first >= pairs) return;
  Pack<T, 2 * N> both = load_pairs<T, N>(gate_up + 2 * first);
  const Pack<T, N> d = load<T, N>(dy + first);
  for (int k = 0; k < N; ++k) {
    const float gate = to_float(both.v[2 * k]), up = to_float(both.v[2 * k + 1]);
    const float dk = to_float(d.v[k]);
    const Clamped at(gate, up, by);
    const float slope = at.sigmoid * (1.0f + by.alpha * at.gate * (1.0f - at.sigmoid));
    const bool is_cut = up > by.limit || up < -by.limit;
    both.v[2 * k] = from_float<T>(gate > by.limit ? 0.0f : dk * (at.up + 1.0f) * slope);
    both.v[2 * k + 1] = from_float<T>(is_cut ? 0.0f : dk * at.gate * at.sigmoid);
  }
  store_pairs<T, N>(gate_up + 2 * first, both);
}

// Calls use<T, N>(blocks) with as many pairs a thread as are aligned.
template <typename Use>
void with_packs(Element type, int64_t pairs, bool is_wide, const Use& use) {
  if (pairs == 0) return;
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kN = kWide<T> / 2;
    if (is_wide && pairs % kN == 0) {
      use.template operator()<T, kN>(divide_up(pairs, int64_t{kThreads} * kN));
    } else {
      use.template operator()<T, 1>(divide_up(pairs, int64_t{kThreads}));
    }
  });
}

}  // namespace

void clamped_swiglu(Element type, const void* gate_up, void* y, int64_t pairs,
                    const ClampedGate& gate, Stream stream) {
  with_packs(type, pairs, is_aligned(gate_up) && is_aligned(y),
             [&]<typename T, int N>(int64_t blocks) {
               launch("clamped_swiglu", clamped_packs<T, N>, {blocks, kThreads}, stream,
                      static_cast<const T*>(gate_up), static_cast<T*>(y), pairs, gate);
             });
}

void clamped_swiglu_backward(Element type, void* gate_up, const void* dy, int64_t pairs,
                             const ClampedGate& gate, Stream stream) {
  with_packs(type, pairs, is_aligned(gate_up) && is_aligned(dy),
             [&]<typename T, int N>(int64_t blocks) {
               launch("clamped_swiglu_backward", clamped_packs_backward<T, N>, {blocks, kThreads},
                      stream, static_cast<T*>(gate_up), static_cast<const T*>(dy), pairs, gate);
             });
}

}  // namespace strata::ops::cuda
