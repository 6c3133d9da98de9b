// RMSNorm of heads and their rotation on NVIDIA GPUs: a warp a head, which stays in registers from
// one to the other; queries and keys in one launch. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"
#include "strata/ops/rms_norm_short.cuh"
#include "strata/ops/row_parts.cuh"

namespace strata::ops::cuda {
namespace {

using namespace row_parts;

// Queries or keys. Their blocks are `first_block` and those after it.
template <typename T>
struct Heads {
  const T* x;
  const T* dy;  // of the backward pass
  T* out;       // y or dx
  const void* weight;
  Element weight_type;
  float* rstd;
  int64_t rows;  // tokens * heads
  int heads;
  int first_block;
  bool is_aligned;  // what it points to, to packs
};
template <typename T>
struct Both {
  Heads<T> queries, keys;
  const float* cos;
  const float* sin;
  int channels;

  __device__ const Heads<T>& of_block() const {
    return blockIdx.x < static_cast<unsigned>(keys.first_block) ? queries : keys;
  }
};

template <typename T, int P>
__device__ inline Part<P> read_row(const T* row, int channels, bool is_aligned) {
  Part<P> part = {};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (channel_of(p) >= channels) continue;
    Pack<T, kN> pack;
    if (is_aligned) {
      pack = load<T, kN>(row + channel_of(p));
    } else {
#pragma unroll
      for (int k = 0; k < kN; ++k) pack.v[k] = row[channel_of(p) + k];
    }
#pragma unroll
    for (int k = 0; k < kN; ++k) part.v[p][k] = to_float(pack.v[k]);
  }
  return part;
}

template <typename T, int P>
__device__ inline void write_row(const Part<P>& part, T* row, int channels, bool is_aligned) {
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (channel_of(p) >= channels) continue;
    Pack<T, kN> pack;
#pragma unroll
    for (int k = 0; k < kN; ++k) pack.v[k] = from_float<T>(part.v[p][k]);
    if (is_aligned) {
      store<T, kN>(row + channel_of(p), pack);
    } else {
#pragma unroll
      for (int k = 0; k < kN; ++k) row[channel_of(p) + k] = pack.v[k];
    }
  }
}

template <typename T, int P, RmsNormKind kKind>
__device__ inline Part<P> read_weight(const Heads<T>& heads, int channels) {
  Part<P> part = {};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (channel_of(p) >= channels) continue;
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      part.v[p][k] =
          factor_of<kKind>(read_element(heads.weight_type, heads.weight, channel_of(p) + k));
    }
  }
  return part;
}

// Both as the halves that turn together: where a row takes one pack a lane, channel i + half is
// with another lane; where it takes several, with the lane itself. Values are rounded to T before
// and after. `sign`: -1 turns back.
template <typename T, int P>
__device__ inline void turn(Part<P>& part, const float* cos, const float* sin, int half,
                            float sign) {
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int k = 0; k < kN; ++k) part.v[p][k] = to_float(from_float<T>(part.v[p][k]));
  }
  if constexpr (P == 1) {
    const int lanes = half / kN, lane = threadIdx.x % 32;
    const bool is_first = lane < lanes;
    // Lanes beyond the row read what is there and are not used.
    const int channel = lane % lanes * kN;
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      const float own = part.v[0][k], other = __shfl_xor_sync(kAllLanes, own, lanes);
      const float c = cos[channel + k], s = sign * sin[channel + k];
      part.v[0][k] = is_first ? own * c - other * s : own * c + other * s;
    }
  } else {
#pragma unroll
    for (int p = 0; p < P / 2; ++p) {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        const float a = part.v[p][k], b = part.v[p + P / 2][k];
        const float c = cos[channel_of(p) + k], s = sign * sin[channel_of(p) + k];
        part.v[p][k] = a * c - b * s;
        part.v[p + P / 2][k] = b * c + a * s;
      }
    }
  }
}

// The rows of the running warp: use(row), of token row / heads.
template <typename T, typename Use>
__device__ inline void for_each_row(const Heads<T>& heads, int blocks, const Use& use) {
  const int64_t first = int64_t{static_cast<int>(blockIdx.x) - heads.first_block} * kWarps;
  for (int64_t row = first + threadIdx.x / 32; row < heads.rows; row += int64_t{blocks} * kWarps) {
    use(row);
  }
}

template <typename T>
__device__ inline int blocks_of(const Both<T>& both, const Heads<T>& heads) {
  return heads.first_block == 0 ? both.keys.first_block
                                : static_cast<int>(gridDim.x) - both.keys.first_block;
}

template <typename T, int P, RmsNormKind kKind>
__global__ void __launch_bounds__(kThreads) norm_and_turn(const Both<T> both, double eps) {
  const Heads<T>& heads = both.of_block();
  const int channels = both.channels, half = channels / 2;
  const Part<P> w = read_weight<T, P, kKind>(heads, channels);
  for_each_row(heads, blocks_of(both, heads), [&](int64_t row) {
    Part<P> part = read_row<T, P>(heads.x + row * channels, channels, heads.is_aligned);
    const float sum = sum_over_row<P>([&](int p, int k) { return part.v[p][k] * part.v[p][k]; });
    const float factor = inverse_root(sum, channels, eps);
    if (threadIdx.x % 32 == 0) heads.rstd[row] = factor;
#pragma unroll
    for (int p = 0; p < P; ++p) {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        part.v[p][k] = weighted<T, kKind>(part.v[p][k] * factor, w.v[p][k]);
      }
    }
    const int64_t angles = row / heads.heads * half;
    turn<T, P>(part, both.cos + angles, both.sin + angles, half, 1.0f);
    write_row<T, P>(part, heads.out + row * channels, channels, heads.is_aligned);
  });
}

// `partials`: a row of sums a block; null: no weight trains.
template <typename T, int P, RmsNormKind kKind>
__global__ void __launch_bounds__(kThreads)
    norm_and_turn_backward(const Both<T> both, float* __restrict__ partials) {
  const Heads<T>& heads = both.of_block();
  const int channels = both.channels, half = channels / 2;
  const Part<P> w = read_weight<T, P, kKind>(heads, channels);
  Part<P> sums = {};
  for_each_row(heads, blocks_of(both, heads), [&](int64_t row) {
    const Part<P> x = read_row<T, P>(heads.x + row * channels, channels, heads.is_aligned);
    Part<P> dy = read_row<T, P>(heads.dy + row * channels, channels, heads.is_aligned);
    const int64_t angles = row / heads.heads * half;
    turn<T, P>(dy, both.cos + angles, both.sin + angles, half, -1.0f);
#pragma unroll
    for (int p = 0; p < P; ++p) {
#pragma unroll
      for (int k = 0; k < kN; ++k) dy.v[p][k] = to_float(from_float<T>(dy.v[p][k]));
    }
    const float factor = heads.rstd[row];
    const float product =
        sum_over_row<P>([&](int p, int k) { return dy.v[p][k] * w.v[p][k] * x.v[p][k]; });
    const float dot = product / static_cast<float>(channels) * factor * factor;
    Part<P> out;
#pragma unroll
    for (int p = 0; p < P; ++p) {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        out.v[p][k] = factor * (dy.v[p][k] * w.v[p][k] - x.v[p][k] * dot);
        sums.v[p][k] += dy.v[p][k] * x.v[p][k] * factor;
      }
    }
    write_row<T, P>(out, heads.out + row * channels, channels, heads.is_aligned);
  });
  if (partials == nullptr) return;  // the whole grid
  __shared__ float shared[kOfPack * kMostPacks];
  add_warps<P>(sums, shared, channels, partials);
}

template <typename T>
Heads<T> heads_of(const NormRopeArguments& a, const NormRopeHeads& of, const void* dy, void* out) {
  return {.x = static_cast<const T*>(of.x),
          .dy = static_cast<const T*>(dy),
          .out = static_cast<T*>(out),
          .weight = of.weight,
          .weight_type = of.weight_type,
          .rstd = of.rstd,
          .rows = a.tokens * of.heads,
          .heads = static_cast<int>(of.heads),
          .first_block = 0,
          .is_aligned = is_aligned(of.x) && is_aligned(dy) && is_aligned(out)};
}

template <typename T>
Both<T> both_of(const NormRopeArguments& a, const Heads<T>& queries, const Heads<T>& keys,
                int64_t blocks_of_queries) {
  Both<T> both{queries, keys, a.cos, a.sin, static_cast<int>(a.channels)};
  both.keys.first_block = static_cast<int>(blocks_of_queries);
  return both;
}

}  // namespace

void norm_rope(const NormRopeArguments& a, void* queries, void* keys, double eps, Stream stream) {
  if (a.tokens == 0) return;
  const int64_t blocks[] = {row_parts::blocks_of(a.tokens * a.queries.heads),
                            row_parts::blocks_of(a.tokens * a.keys.heads)};
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const Both<T> both = both_of(a, heads_of<T>(a, a.queries, nullptr, queries),
                                 heads_of<T>(a, a.keys, nullptr, keys), blocks[0]);
    with_packs(a.channels, a.kind, [&]<int P, RmsNormKind kKind>() {
      launch("norm_rope", norm_and_turn<T, P, kKind>, {blocks[0] + blocks[1], kThreads}, stream,
             both, eps);
    });
  });
}

void norm_rope_backward(const NormRopeArguments& a, const NormRopeGradients& queries,
                        const NormRopeGradients& keys, float* partials, Stream stream) {
  const auto blocks_for = [&](const NormRopeHeads& of) {
    const int64_t rows = a.tokens * of.heads;
    return partials != nullptr ? rms_norm_partials(rows, a.channels) : row_parts::blocks_of(rows);
  };
  const int64_t blocks[] = {blocks_for(a.queries), blocks_for(a.keys)};
  if (a.tokens > 0) {
    with_type(a.type, [&](auto zero) {
      using T = decltype(zero);
      const Both<T> both = both_of(a, heads_of<T>(a, a.queries, queries.dy, queries.dx),
                                   heads_of<T>(a, a.keys, keys.dy, keys.dx), blocks[0]);
      with_packs(a.channels, a.kind, [&]<int P, RmsNormKind kKind>() {
        launch("norm_rope_backward", norm_and_turn_backward<T, P, kKind>,
               {blocks[0] + blocks[1], kThreads}, stream, both, partials);
      });
    });
  }
  const auto finish = [&](const NormRopeGradients& g, const float* sums, int64_t count) {
    if (g.dweight == nullptr) return;
    sum_partials("norm_rope_backward", {sums, count, a.channels},
                 {g.dweight_type, g.dweight, g.beta != 0}, stream);
  };
  if (queries.dweight == nullptr && keys.dweight == nullptr) return;
  finish(queries, partials, blocks[0]);
  finish(keys, partials + blocks[0] * a.channels, blocks[1]);
}

}  // namespace strata::ops::cuda
