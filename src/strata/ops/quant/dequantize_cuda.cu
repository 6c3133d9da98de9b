// Decodes quantised matrices on NVIDIA GPUs, whole or inside a product with few rows. Never:
// checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::quant::cuda {
namespace {

using namespace strata::ops::cuda;  // NOLINT: the building blocks of all kernels

constexpr int kThreads = 256;
// Elements that a thread decodes at once. Blocks of scales are longer, so that all have one scale.
constexpr int kElements = 8;

// Shared memory answers a warp that asks for many different codes at once; constant memory does
// not.
__device__ inline void share_table(const MatrixCodes& matrix, float* table) {
  if (threadIdx.x < 16) table[threadIdx.x] = matrix.table[threadIdx.x];
  __syncthreads();
}

struct Codes4Bit {
  uint32_t bytes;  // the first in the lowest eight bits
  float scale;
};

// Elements [begin, begin + count) of a 4-bit matrix, begin a multiple of 8, count up to 8.
__device__ inline Codes4Bit read_4bit(const MatrixCodes& matrix, int64_t begin, int count) {
  Codes4Bit codes{0, matrix.scales[begin >> matrix.block_shift]};
  const uint8_t* from = matrix.codes + begin / 2;
  if (count == kElements && reinterpret_cast<uintptr_t>(from) % 4 == 0) {
    codes.bytes = *reinterpret_cast<const uint32_t*>(from);
  } else {
#pragma unroll
    for (int b = 0; b < kElements / 2; ++b) {
      if (2 * b < count) codes.bytes |= static_cast<uint32_t>(from[b]) << (8 * b);
    }
  }
  return codes;
}

// The first element of a byte is in its high half.
__device__ inline void decode_4bit(const Codes4Bit& codes, const float* table, float* out) {
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    out[k] = table[codes.bytes >> (8 * (k / 2) + (k % 2 == 0 ? 4 : 0)) & 15] * codes.scale;
  }
}

// Elements of one row of an int8 matrix, any begin; zeros behind `count`.
__device__ inline void decode_int8(const MatrixCodes& matrix, int64_t begin, int count,
                                   float* out) {
  const float scale = matrix.scales[begin / matrix.columns] * (1.0f / 127.0f);
  const auto* from = reinterpret_cast<const int8_t*>(matrix.codes) + begin;
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    out[k] = k < count ? static_cast<float>(from[k]) * scale : 0.0f;
  }
}

// A code of E4M3, by its bits.
__device__ inline float decode_e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float normal = float_of_bits((magnitude << 20) + (120u << 23));
  const float finite = magnitude < 8u ? static_cast<float>(magnitude) * 0x1p-9f : normal;
  const float value = magnitude == 0x7fu ? float_of_bits(0x7fc00000u) : finite;
  return (code & 0x80u) != 0 ? -value : value;
}

__device__ inline float rounded_through(Element type, float value) {
  if (type == Element::kBFloat16) return to_float(from_float<BFloat16>(value));
  return type == Element::kHalf ? to_float(from_float<Half>(value)) : value;
}

__device__ inline float scale_of_tile(const MatrixCodes& matrix, int64_t row, int64_t column) {
  const int64_t across = (matrix.columns + matrix.tile_columns - 1) / matrix.tile_columns;
  return matrix.scales[row / matrix.tile_rows * across + column / matrix.tile_columns];
}

// Elements of one row of a matrix in fp8, any begin; zeros behind `count`.
__device__ inline void decode_fp8(const MatrixCodes& matrix, int64_t begin, int count, float* out) {
  const int64_t row = begin / matrix.columns, column = begin % matrix.columns;
  const bool is_one_tile = column % matrix.tile_columns + kElements <= matrix.tile_columns;
  const float scale = count > 0 ? scale_of_tile(matrix, row, column) : 0.0f;
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    if (k >= count) {
      out[k] = 0.0f;
      continue;
    }
    const float of_element = is_one_tile ? scale : scale_of_tile(matrix, row, column + k);
    out[k] = rounded_through(matrix.through, decode_e4m3(matrix.codes[begin + k]) * of_element);
  }
}

// Of a matrix with an element a byte.
__device__ inline float decode_one_8bit(const MatrixCodes& matrix, int64_t i) {
  if (matrix.is_fp8) {
    const float scale = scale_of_tile(matrix, i / matrix.columns, i % matrix.columns);
    return rounded_through(matrix.through, decode_e4m3(matrix.codes[i]) * scale);
  }
  const float scale = matrix.scales[i / matrix.columns] * (1.0f / 127.0f);
  return static_cast<float>(static_cast<int8_t>(matrix.codes[i])) * scale;
}

__device__ inline void decode_8bit(const MatrixCodes& matrix, int64_t begin, int count,
                                   float* out) {
  matrix.is_fp8 ? decode_fp8(matrix, begin, count, out) : decode_int8(matrix, begin, count, out);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    decode_matrix(const __grid_constant__ MatrixCodes matrix, T* __restrict__ out) {
  __shared__ float table[16];
  const int64_t numel = matrix.rows * matrix.columns;
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  const int count = static_cast<int>(numel - begin < kElements ? numel - begin : kElements);
  // Ahead of the barrier: the codes are on their way while the table is shared.
  Codes4Bit codes{};
  const bool in_4bit = !matrix.is_int8 && !matrix.is_fp8;
  if (in_4bit && count > 0) codes = read_4bit(matrix, begin, count);
  share_table(matrix, table);
  if (count <= 0) return;
  float values[kElements];
  if (in_4bit) {
    decode_4bit(codes, table, values);
  } else if (matrix.columns % kElements == 0) {
    decode_8bit(matrix, begin, count, values);
  } else {  // rows end inside the pack
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      if (k < count) values[k] = decode_one_8bit(matrix, begin + k);
    }
  }
  if (count == kElements) {
    constexpr int kN = kWide<T>;  // 4 of fp32, 8 of 16 bits
#pragma unroll
    for (int start = 0; start < kElements; start += kN) {
      Pack<T, kN> pack;
#pragma unroll
      for (int k = 0; k < kN; ++k) pack.v[k] = from_float<T>(values[start + k]);
      store<T, kN>(out + begin + start, pack);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      if (k < count) out[begin + k] = from_float<T>(values[k]);
    }
  }
}

// Elements [0, count) of a row of x, zeros behind.
template <typename T>
__device__ inline void read_row(const T* x, int count, float* out) {
  constexpr int kN = kWide<T>;
  if (count == kElements && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
#pragma unroll
    for (int start = 0; start < kElements; start += kN) {
      const Pack<T, kN> pack = load<T, kN>(x + start);
#pragma unroll
      for (int k = 0; k < kN; ++k) out[start + k] = to_float(pack.v[k]);
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kElements; ++k) out[k] = k < count ? to_float(x[k]) : 0.0f;
}

// A warp makes one column of y: its row of W stays in registers for all rows of x. M: rows of x
// that there is room for.
template <typename T, int M>
__global__ void __launch_bounds__(kThreads)
    multiply_codes(const __grid_constant__ MatrixCodes matrix,
                   const __grid_constant__ SmallProduct product) {
  __shared__ float table[16];
  share_table(matrix, table);
  const int lane = threadIdx.x % 32;
  const int64_t column = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (column >= matrix.rows) return;  // the whole warp
  const T* x = static_cast<const T*>(product.x);
  float sums[M] = {};
  for (int64_t k = int64_t{lane} * kElements; k < matrix.columns; k += 32 * kElements) {
    const int count =
        static_cast<int>(matrix.columns - k < kElements ? matrix.columns - k : kElements);
    float values[kElements];
    if (matrix.is_int8 || matrix.is_fp8) {
      decode_8bit(matrix, column * matrix.columns + k, count, values);
    } else {
      decode_4bit(read_4bit(matrix, column * matrix.columns + k, count), table, values);
    }
#pragma unroll
    for (int row = 0; row < M; ++row) {
      if (row >= product.rows) continue;
      float factors[kElements];
      read_row<T>(x + row * product.x_stride + k, count, factors);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        sums[row] += to_float(from_float<T>(values[e])) * factors[e];
      }
    }
  }
  T* y = static_cast<T*>(product.y);
#pragma unroll
  for (int row = 0; row < M; ++row) {
    const float sum = warp_sum(sums[row]);
    if (lane != 0 || row >= product.rows) continue;
    T& to = y[row * product.y_stride + column];
    to = from_float<T>(product.add ? to_float(to) + sum : sum);
  }
}

template <typename T>
void launch_multiply(const MatrixCodes& matrix, const SmallProduct& product, Stream stream) {
  const Grid grid{divide_up(matrix.rows, kThreads / 32), kThreads};
  launch("multiply_few_rows",
         product.rows == 1 ? multiply_codes<T, 1> : multiply_codes<T, kMostRowsOfSmallProduct>,
         grid, stream, matrix, product);
}

}  // namespace

void dequantize(const MatrixCodes& matrix, Element type, void* out, Stream stream) {
  const int64_t numel = matrix.rows * matrix.columns;
  if (numel == 0) return;
  const Grid grid{divide_up(numel, int64_t{kThreads} * kElements), kThreads};
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch("dequantize", decode_matrix<T>, grid, stream, matrix, static_cast<T*>(out));
  });
}

void multiply_few_rows(const MatrixCodes& matrix, const SmallProduct& product, Stream stream) {
  if (matrix.rows == 0 || product.rows == 0) return;
  with_type(product.type,
            [&](auto zero) { launch_multiply<decltype(zero)>(matrix, product, stream); });
}

}  // namespace strata::ops::quant::cuda
