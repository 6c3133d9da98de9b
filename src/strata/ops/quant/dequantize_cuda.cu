// Decodes quantised matrices on NVIDIA GPUs, whole or inside a product with few rows. Never:
// checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"
#include "strata/ops/quant/decode_codes.cuh"

namespace strata::ops::quant::cuda {
namespace {

constexpr int kThreads = 256;

// Kernels that decode have a row of blocks for every matrix: the one of this block, whose `table`
// is nobody's.
__device__ inline MatrixCodes matrix_of_block(const MatrixCodes& first) {
  const int64_t bytes = int64_t{blockIdx.y} * first.bytes_apart;
  MatrixCodes matrix = first;
  matrix.codes += bytes;
  if (matrix.scales != nullptr) matrix.scales += int64_t{blockIdx.y} * first.scales_apart;
  const auto behind = [bytes](const auto* part) {
    using Part = decltype(part);
    return part == nullptr ? part
                           : reinterpret_cast<Part>(reinterpret_cast<const uint8_t*>(part) + bytes);
  };
  matrix.ints.scales = behind(first.ints.scales);
  matrix.ints.zeros = behind(first.ints.zeros);
  matrix.ints.order = behind(first.ints.order);
  return matrix;
}

template <typename T>
__device__ inline T* out_of_block(const MatrixCodes& matrix, T* out) {
  return out + int64_t{blockIdx.y} * matrix.rows * matrix.columns;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    decode_4bit_matrix(const __grid_constant__ MatrixCodes first, T* __restrict__ all) {
  __shared__ float table[16];
  const MatrixCodes matrix = matrix_of_block(first);
  T* out = out_of_block(matrix, all);
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  const int count = count_of_pack(matrix, begin);
  // Ahead of the barrier: the codes are on their way while the table is shared.
  Codes4Bit codes{};
  if (count > 0) codes = read_4bit(matrix, begin, count);
  share_table(first, table);
  if (count <= 0) return;
  float values[kElements];
  decode_4bit(codes, table, values);
  write_pack(values, count, out + begin);
}

template <typename T, bool kIsFp8>
__global__ void __launch_bounds__(kThreads)
    decode_byte_matrix(const __grid_constant__ MatrixCodes of_first, T* __restrict__ all) {
  __shared__ Place first;
  const MatrixCodes matrix = matrix_of_block(of_first);
  T* out = out_of_block(matrix, all);
  const int64_t block_begin = int64_t{blockIdx.x} * kThreads * kElements;
  const uint32_t offset = threadIdx.x * kElements;
  const int64_t begin = block_begin + offset;
  const int count = count_of_pack(matrix, begin);
  uint64_t bytes = 0;  // ahead of the barrier, as above
  if (count > 0) bytes = read_bytes(matrix.codes + begin, count);
  share_place(matrix.columns, block_begin, &first);
  if (count <= 0) return;
  const Place place = behind(matrix.columns, first, offset);
  float values[kElements];
  if (place.column + static_cast<uint32_t>(count) <= matrix.columns) {
    decode_bytes<kIsFp8>(matrix, bytes, place, count, values);
  } else {
    decode_across_rows<kIsFp8>(matrix, bytes, place, count, values);
  }
  write_pack(values, count, out + begin);
}

// Packs of eight columns, whole rows of them: rows of codes are whole bytes.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    decode_int_matrix(const __grid_constant__ MatrixCodes of_first, T* __restrict__ all) {
  __shared__ Place first;
  const MatrixCodes matrix = matrix_of_block(of_first);
  T* out = out_of_block(matrix, all);
  const int64_t across = (matrix.columns + kElements - 1) / kElements;
  share_place(across, int64_t{blockIdx.x} * kThreads, &first);
  Place place = behind(across, first, threadIdx.x);
  if (place.row >= matrix.rows) return;
  place.column *= kElements;
  const int64_t left = matrix.columns - place.column;
  const int count = static_cast<int>(left < kElements ? left : kElements);
  float values[kElements];
  decode_ints(matrix, read_ints(matrix, place, count), place, count, values);
  T* to = out + int64_t{place.row} * matrix.columns + place.column;
  if (matrix.columns % kElements == 0) {
    write_pack(values, count, to);
  } else {  // packs begin anywhere
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      if (k < count) to[k] = from_float<T>(values[k]);
    }
  }
}

// Elements [0, count) of a row of x, zeros after.
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
    const int64_t begin = column * matrix.columns + k;
    const Place place{static_cast<uint32_t>(column), static_cast<uint32_t>(k)};
    float values[kElements];
    if (matrix.ints.bits != 0) {
      decode_ints(matrix, read_ints(matrix, place, count), place, count, values);
    } else if (matrix.is_fp8) {
      decode_bytes<true>(matrix, read_bytes(matrix.codes + begin, count), place, count, values);
    } else if (matrix.is_int8) {
      decode_bytes<false>(matrix, read_bytes(matrix.codes + begin, count), place, count, values);
    } else {
      decode_4bit(read_4bit(matrix, begin, count), table, values);
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

void dequantize(const MatrixCodes& matrix, int64_t count, Element type, void* out, Stream stream) {
  const int64_t numel = matrix.rows * matrix.columns;
  if (numel == 0 || count == 0) return;
  if (matrix.ints.bits != 0) {
    const Grid packs{
        .blocks = divide_up(matrix.rows * divide_up(matrix.columns, kElements), kThreads),
        .threads = kThreads,
        .columns = count};
    return with_type(type, [&](auto zero) {
      using T = decltype(zero);
      launch("dequantize", decode_int_matrix<T>, packs, stream, matrix, static_cast<T*>(out));
    });
  }
  const Grid grid{.blocks = divide_up(numel, int64_t{kThreads} * kElements),
                  .threads = kThreads,
                  .columns = count};
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = matrix.is_fp8    ? decode_byte_matrix<T, true>
                        : matrix.is_int8 ? decode_byte_matrix<T, false>
                                         : decode_4bit_matrix<T>;
    launch("dequantize", kernel, grid, stream, matrix, static_cast<T*>(out));
  });
}

void multiply_few_rows(const MatrixCodes& matrix, const SmallProduct& product, Stream stream) {
  if (matrix.rows == 0 || product.rows == 0) return;
  with_type(product.type,
            [&](auto zero) { launch_multiply<decltype(zero)>(matrix, product, stream); });
}

}  // namespace strata::ops::quant::cuda
