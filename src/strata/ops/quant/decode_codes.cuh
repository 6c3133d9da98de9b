// How a thread of a GPU reads and decodes up to eight codes of a matrix, of every form that has a
// scale beside it. Owns: no kernel. Never: which elements are a thread's.
#pragma once

#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::quant::cuda {

using namespace strata::ops::cuda;  // NOLINT: the building blocks of all kernels

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

// Up to eight codes of a byte each, the first in the lowest bits; zeros after `count`.
__device__ inline uint64_t read_bytes(const uint8_t* from, int count) {
  if (count == kElements && reinterpret_cast<uintptr_t>(from) % kElements == 0) {
    return *reinterpret_cast<const uint64_t*>(from);
  }
  uint64_t bytes = 0;
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    if (k < count) bytes |= static_cast<uint64_t>(from[k]) << (8 * k);
  }
  return bytes;
}

__device__ inline uint32_t byte_of(uint64_t bytes, int k) {
  return static_cast<uint32_t>(bytes >> (8 * k)) & 0xffu;
}

// An element of a matrix. Rows and columns fit into 31 bits: a division of 64 costs as much as all
// else that is done for an element.
struct Place {
  uint32_t row, column;
};

// The block's first element of rows of so many, divided by one thread for all.
__device__ inline void share_place(int64_t across, int64_t first, Place* place) {
  if (threadIdx.x == 0) {
    *place = {static_cast<uint32_t>(first / across), static_cast<uint32_t>(first % across)};
  }
  __syncthreads();
}

__device__ inline Place behind(int64_t across, const Place& place, uint32_t offset) {
  const auto columns = static_cast<uint32_t>(across);
  const uint32_t column = place.column + offset;
  if (column < columns) return {place.row, column};
  return {place.row + column / columns, column % columns};
}

// A code of E4M3: its bits in the places of an fp32, whose exponent is 120 too small. Also of what
// is subnormal, in the one as in the other.
__device__ inline float decode_e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float small = float_of_bits((code & 0x80u) << 24 | magnitude << 20);
  return magnitude == 0x7fu ? float_of_bits(0x7fc00000u) : small * 0x1p120f;
}

// Asked once for all of them: `type` is the same for the whole matrix.
__device__ inline void round_through(Element type, float* values) {
  if (type == Element::kBFloat16) {
#pragma unroll
    for (int k = 0; k < kElements; ++k) values[k] = to_float(from_float<BFloat16>(values[k]));
  } else if (type == Element::kHalf) {
#pragma unroll
    for (int k = 0; k < kElements; ++k) values[k] = to_float(from_float<Half>(values[k]));
  }
}

__device__ inline float scale_of_tile(const MatrixCodes& matrix, const Place& place) {
  const uint32_t down = place.row / static_cast<uint32_t>(matrix.tile_rows);
  const uint32_t across = place.column / static_cast<uint32_t>(matrix.tile_columns);
  return matrix.scales[down * matrix.tiles_across + across];
}

__device__ inline float scale_of_row(const MatrixCodes& matrix, const Place& place) {
  return matrix.scales[place.row] * (1.0f / 127.0f);
}

__device__ inline float decode_int8(uint32_t code, float scale) {
  return static_cast<float>(static_cast<int8_t>(code)) * scale;
}

// Elements of one row of a matrix with an element a byte, any place; zeros after `count`, which is
// above 0.
template <bool kIsFp8>
__device__ inline void decode_bytes(const MatrixCodes& matrix, uint64_t bytes, const Place& place,
                                    int count, float* out) {
  if constexpr (!kIsFp8) {
    const float scale = scale_of_row(matrix, place);
#pragma unroll
    for (int k = 0; k < kElements; ++k) out[k] = decode_int8(byte_of(bytes, k), scale);
    return;
  }
  const auto width = static_cast<uint32_t>(matrix.tile_columns);
  if (count == kElements && place.column % width + kElements <= width) {
    const float scale = scale_of_tile(matrix, place);
#pragma unroll
    for (int k = 0; k < kElements; ++k) out[k] = decode_e4m3(byte_of(bytes, k)) * scale;
  } else {
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      if (k < count) {
        const float scale = scale_of_tile(matrix, {place.row, place.column + k});
        out[k] = decode_e4m3(byte_of(bytes, k)) * scale;
      } else {
        out[k] = 0.0f;
      }
    }
  }
  round_through(matrix.through, out);
}

// The same where rows end among them.
template <bool kIsFp8>
__device__ inline void decode_across_rows(const MatrixCodes& matrix, uint64_t bytes, Place place,
                                          int count, float* out) {
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    out[k] = 0.0f;
    if (k >= count) continue;
    const uint32_t code = byte_of(bytes, k);
    out[k] = kIsFp8 ? decode_e4m3(code) * scale_of_tile(matrix, place)
                    : decode_int8(code, scale_of_row(matrix, place));
    if (++place.column == matrix.columns) place = {place.row + 1, 0};
  }
  if constexpr (kIsFp8) round_through(matrix.through, out);
}

// Up to eight whole numbers of a row, the first in the lowest bits; zeros after `count`.
__device__ inline uint64_t read_ints(const MatrixCodes& matrix, const Place& place, int count) {
  const IntGroups& of = matrix.ints;
  const uint8_t* row = matrix.codes + int64_t{place.row} * of.row_bytes;
  if (of.bits == 8) return read_bytes(row + place.column, count);
  const uint8_t* from = row + place.column / 2;
  if (count == kElements && reinterpret_cast<uintptr_t>(from) % 4 == 0) {
    return *reinterpret_cast<const uint32_t*>(from);
  }
  uint64_t bytes = 0;
#pragma unroll
  for (int k = 0; k < kElements / 2; ++k) {
    if (2 * k < count) bytes |= static_cast<uint64_t>(from[k]) << (8 * k);
  }
  return bytes;
}

// One of them less the middle of all codes.
__device__ inline float above_middle(int bits, uint64_t codes, int k) {
  if (bits == 8) return static_cast<float>(static_cast<int>(byte_of(codes, k)) - 128);
  return static_cast<float>(static_cast<int>(codes >> (4 * k) & 15) - 8);
}

struct ScaleAndZero {
  float scale, zero;
};

__device__ inline ScaleAndZero read_group(const IntGroups& of, const Place& place, int64_t group) {
  const int64_t index = int64_t{place.row} * of.groups + group;
  return {read_element(of.scale_type, of.scales, index),
          of.zeros == nullptr ? 0.0f : static_cast<float>(of.zeros[index])};
}

// Whole numbers of one row from a column on, a multiple of 8; zeros after `count`, which is above
// 0.
__device__ inline void decode_ints(const MatrixCodes& matrix, uint64_t codes, const Place& place,
                                   int count, float* out) {
  const IntGroups& of = matrix.ints;
  const auto size = static_cast<uint32_t>(of.group);
  const uint32_t group = place.column / size;
  if (of.order == nullptr && count == kElements && (place.column + kElements - 1) / size == group) {
    const ScaleAndZero by = read_group(of, place, group);
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      out[k] = (above_middle(of.bits, codes, k) - by.zero) * by.scale;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      out[k] = 0.0f;
      if (k >= count) continue;
      const uint32_t column = place.column + k;
      const ScaleAndZero by = read_group(
          of, place, of.order != nullptr ? static_cast<uint32_t>(of.order[column]) : column / size);
      out[k] = (above_middle(of.bits, codes, k) - by.zero) * by.scale;
    }
  }
  round_through(of.scale_type, out);
  if (matrix.through != of.scale_type) round_through(matrix.through, out);
}

__device__ inline int count_of_pack(const MatrixCodes& matrix, int64_t begin) {
  const int64_t left = matrix.rows * matrix.columns - begin;
  return static_cast<int>(left < kElements ? left : kElements);
}

template <typename T>
__device__ inline void write_pack(const float* values, int count, T* out) {
  if (count == kElements) {
    constexpr int kN = kWide<T>;  // 4 of fp32, 8 of 16 bits
#pragma unroll
    for (int start = 0; start < kElements; start += kN) {
      Pack<T, kN> pack;
#pragma unroll
      for (int k = 0; k < kN; ++k) pack.v[k] = from_float<T>(values[start + k]);
      store<T, kN>(out + start, pack);
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    if (k < count) out[k] = from_float<T>(values[k]);
  }
}

}  // namespace strata::ops::quant::cuda
