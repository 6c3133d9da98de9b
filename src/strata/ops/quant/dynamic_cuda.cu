// The 8-bit dynamic map on NVIDIA GPUs: scales of quantised matrices, optimizer state, and AdamW
// over it. Never: checks.
#include "strata/ops/adamw_cuda.cuh"
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::quant::cuda {
namespace {

using namespace strata::ops::cuda;  // NOLINT: the building blocks of all kernels

constexpr int kMap = 256;
constexpr int kThreads = 256;      // one an element of a block of state
constexpr int kMostBlocks = 1056;  // eight a multiprocessor of an H100

// A row of blocks for every matrix.
__global__ void __launch_bounds__(kThreads)
    decode_dynamic(const __grid_constant__ NestedScales nested, int64_t n,
                   float* __restrict__ out) {
  __shared__ float values[kMap];
  values[threadIdx.x] = nested.map[threadIdx.x];
  __syncthreads();
  const int64_t apart = int64_t{blockIdx.y} * nested.bytes_apart;
  const uint8_t* codes = nested.codes + apart;
  const float* scales = nested.scales + apart / 4;
  const float offset = nested.mean != nullptr ? nested.mean[apart / 4] : 0.0f;
  float* to = out + int64_t{blockIdx.y} * n;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    // Two roundings, as on the CPU: no fused multiply-add.
    to[i] = __fadd_rn(__fmul_rn(values[codes[i]], scales[i / nested.block]), offset);
  }
}

// Number of borders below x, each the middle of two neighbouring values; NaN gives 0.
__device__ inline uint8_t nearest(const float* borders, float x) {
  int index = 0;
  for (int half = kMap / 2; half > 0; half /= 2) {
    index += x > borders[index + half - 1] ? half : 0;
  }
  return static_cast<uint8_t>(index);
}

__device__ inline void share_map(const float* map, float* values, float* borders) {
  for (int i = threadIdx.x; i < kMap; i += blockDim.x) {
    values[i] = map[i];
    borders[i] = i + 1 < kMap ? (map[i] + map[i + 1]) * 0.5f : INFINITY;
  }
}

// The code of one element of a block whose largest magnitude is `scale`.
__device__ inline uint8_t code_of(const float* borders, float x, float scale, uint8_t zero) {
  return scale == 0 ? zero : nearest(borders, x / scale);
}

// The magnitude, 0 for NaN.
__device__ inline float magnitude(float x) { return x == x ? fabsf(x) : 0.0f; }

constexpr uint8_t kSignedZero = 127, kUnsignedZero = 0;

// A CUDA block goes over blocks of `block` elements, one after the other.
__global__ void __launch_bounds__(kThreads)
    encode_dynamic(const float* __restrict__ map, uint8_t zero, int64_t block,
                   const float* __restrict__ x, int64_t n, uint8_t* __restrict__ codes,
                   float* __restrict__ scales) {
  __shared__ float values[kMap], borders[kMap];
  share_map(map, values, borders);
  __syncthreads();
  const int64_t blocks = (n + block - 1) / block;
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t begin = b * block, end = begin + block < n ? begin + block : n;
    float largest = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      largest = fmaxf(largest, magnitude(x[i]));
    }
    const float scale = block_max(largest);
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      codes[i] = code_of(borders, x[i], scale, zero);
    }
    if (threadIdx.x == 0) scales[b] = scale;
  }
}

// One thread an element: kThreads is the block of the state.
__global__ void __launch_bounds__(kThreads)
    adamw_8bit_blocks(const AdamW8Bit a, const AdamWFactors f) {
  __shared__ float signed_values[kMap], signed_borders[kMap];
  __shared__ float unsigned_values[kMap], unsigned_borders[kMap];
  share_map(a.signed_map, signed_values, signed_borders);
  share_map(a.unsigned_map, unsigned_values, unsigned_borders);
  __syncthreads();
  const int64_t blocks = (a.n + kThreads - 1) / kThreads;
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t i = b * kThreads + threadIdx.x;
    const bool is_used = i < a.n;
    float m = 0, v = 0;
    if (is_used) {
      float param = a.param[i];
      m = signed_values[a.exp_avg[i]] * a.exp_avg_scales[b];
      v = unsigned_values[a.exp_avg_sq[i]] * a.exp_avg_sq_scales[b];
      update_one(param, a.grad[i], m, v, f);
      a.param[i] = param;
      if (a.copy.data != nullptr) write_element(a.copy.type, a.copy.data, i, param);
    }
    // Barriers inside: every thread has read the old scales before thread 0 writes the new ones.
    const float m_scale = block_max(magnitude(m)), v_scale = block_max(magnitude(v));
    if (is_used) {
      a.exp_avg[i] = code_of(signed_borders, m, m_scale, kSignedZero);
      a.exp_avg_sq[i] = code_of(unsigned_borders, v, v_scale, kUnsignedZero);
    }
    if (threadIdx.x == 0) {
      a.exp_avg_scales[b] = m_scale;
      a.exp_avg_sq_scales[b] = v_scale;
    }
  }
}

Grid grid_for(int64_t blocks) { return {blocks < kMostBlocks ? blocks : kMostBlocks, kThreads}; }

}  // namespace

void dequantize_dynamic(const NestedScales& nested, int64_t n, int64_t count, float* out,
                        Stream stream) {
  if (n == 0 || count == 0) return;
  Grid grid = grid_for(divide_up(n, kThreads));
  grid.columns = count;
  launch("dequantize_dynamic", decode_dynamic, grid, stream, nested, n, out);
}

void quantize_dynamic(const float* map, bool is_signed, int64_t block, const float* x, int64_t n,
                      uint8_t* codes, float* scales, Stream stream) {
  if (n == 0) return;
  launch("quantize_dynamic", encode_dynamic, grid_for(divide_up(n, block)), stream, map,
         is_signed ? kSignedZero : kUnsignedZero, block, x, n, codes, scales);
}

void adamw_8bit(const AdamW8Bit& a, const AdamWFactors& factors, Stream stream) {
  if (a.n == 0) return;
  launch("adamw_8bit", adamw_8bit_blocks, grid_for(divide_up(a.n, kThreads)), stream, a, factors);
}

}  // namespace strata::ops::quant::cuda
