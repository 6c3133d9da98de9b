// Decodes MXFP4 on NVIDIA GPUs. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::quant::cuda {
namespace {

using namespace strata::ops::cuda;  // NOLINT: the building blocks of all kernels

constexpr int kBlock = 32;        // elements that share a scale
constexpr int kTileColumns = 64;  // of the decoded matrix
constexpr int kTileRows = 64;
constexpr int kThreads = kTileColumns * (kTileRows / kBlock);
constexpr int kPitch = kTileColumns + 2;  // of a row in shared memory

// 2^(scale - 127); infinite for the largest.
__device__ inline float power_of(uint32_t scale) {
  return float_of_bits(scale == 0 ? 0x00400000u : scale << 23);
}

// The magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 of three bits, and a sign.
__device__ inline float decode(uint32_t code, float power) {
  const uint32_t magnitude = code & 7u;
  const uint32_t bits =
      magnitude < 2u ? (0u - magnitude) & 0x3F000000u : (magnitude << 22) + 0x3F000000u;
  return float_of_bits(bits | (code & 8u) << 28) * power;
}

// A thread decodes one block of codes, which is a part of a column of `out`; through shared memory
// whole rows are written.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    decode_tiles(const __grid_constant__ Mxfp4Codes matrix, T* __restrict__ out) {
  alignas(16) __shared__ T tile[kTileRows * kPitch];
  const int64_t apart = int64_t{blockIdx.y} * matrix.bytes_apart;  // a row of blocks a matrix
  const uint8_t* codes = matrix.codes + apart;
  const uint8_t* scales = matrix.scales + apart;
  const int64_t of_column = matrix.rows / kBlock;  // blocks
  const int64_t tiles_down = (of_column + 1) / 2;
  const int64_t first_column = int64_t{blockIdx.x} / tiles_down * kTileColumns;
  const int64_t first_block = int64_t{blockIdx.x} % tiles_down * 2;
  const int own_column = threadIdx.x % kTileColumns, own_block = threadIdx.x / kTileColumns;
  const int64_t column = first_column + own_column, block = first_block + own_block;
  if (column < matrix.columns && block < of_column) {
    const int64_t at = column * of_column + block;
    const Pack<uint32_t, 4> words =
        load<uint32_t, 4>(reinterpret_cast<const uint32_t*>(codes + at * (kBlock / 2)));
    const float power = power_of(scales[at]);
#pragma unroll
    for (int k = 0; k < kBlock; ++k) {
      float value = decode(words.v[k / 8] >> (4 * (k % 8)), power);
      if (matrix.through_half) value = to_float(from_float<Half>(value));
      tile[(own_block * kBlock + k) * kPitch + own_column] = from_float<T>(value);
    }
  }
  __syncthreads();
  const int64_t rows_left = matrix.rows - first_block * kBlock;
  const int rows = static_cast<int>(rows_left < kTileRows ? rows_left : kTileRows);
  const int64_t columns_left = matrix.columns - first_column;
  const int columns = static_cast<int>(columns_left < kTileColumns ? columns_left : kTileColumns);
  T* to = out + (int64_t{blockIdx.y} * matrix.rows + first_block * kBlock) * matrix.columns +
          first_column;
  const int lane = threadIdx.x % 32;
  const bool is_even = matrix.columns % 2 == 0;
  for (int row = threadIdx.x / 32; row < rows; row += kThreads / 32) {
    const T* from = tile + row * kPitch;
    T* row_of_out = to + row * matrix.columns;
    if (is_even) {
      if (2 * lane < columns) {
        *reinterpret_cast<Pack<T, 2>*>(row_of_out + 2 * lane) = load<T, 2>(from + 2 * lane);
      }
    } else {
      for (int c = lane; c < columns; c += 32) row_of_out[c] = from[c];
    }
  }
}

}  // namespace

void decode_mxfp4(const Mxfp4Codes& matrix, int64_t count, Element type, void* out, Stream stream) {
  if (matrix.rows == 0 || matrix.columns == 0 || count == 0) return;
  const int64_t tiles = divide_up(matrix.rows, kTileRows) * divide_up(matrix.columns, kTileColumns);
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch("decode_mxfp4", decode_tiles<T>,
           Grid{.blocks = tiles, .threads = kThreads, .columns = count}, stream, matrix,
           static_cast<T*>(out));
  });
}

}  // namespace strata::ops::quant::cuda
