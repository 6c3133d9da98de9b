#include "strata/shard/mxfp4_loading.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "strata/base/file.h"
#include "strata/ops/element.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

constexpr int64_t kCodes = 32;    // of a block
constexpr int64_t kColumns = 64;  // decoded at a time, a block of each
constexpr std::array<float, 16> kValues{0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(scale - 127); infinite for the largest, as there.
float power_of(uint8_t scale) { return std::ldexp(1.0f, static_cast<int>(scale) - 127); }

// One expert's matrix [K, N] of codes [N, K / 32, 16].
struct Matrix {
  const uint8_t *blocks, *scales;
  int64_t rows, columns;  // K, N

  // A block's rows of the columns [first, first + count), row by row, kColumns apart.
  void decode(int64_t block, int64_t first, int64_t count, float* tile) const {
    const int64_t of_column = rows / kCodes;
    for (int64_t c = 0; c < count; ++c) {
      const int64_t at = (first + c) * of_column + block;
      const float power = power_of(scales[at]);
      const uint8_t* codes = blocks + at * (kCodes / 2);
      for (int64_t i = 0; i < kCodes / 2; ++i) {
        tile[2 * i * kColumns + c] = kValues[codes[i] & 0x0F] * power;
        tile[(2 * i + 1) * kColumns + c] = kValues[codes[i] >> 4] * power;
      }
    }
  }
};

// Rows [begin, end) into `out`, bfloat16 from row `begin` on.
void decode_rows(const Matrix& matrix, int64_t begin, int64_t end, uint16_t* out) {
  const int64_t first_block = begin / kCodes, end_block = (end + kCodes - 1) / kCodes;
  at::parallel_for(first_block, end_block, /*grain_size=*/1, [&](int64_t from, int64_t to) {
    std::array<float, kCodes * kColumns> tile;
    for (int64_t block = from; block < to; ++block) {
      const int64_t first = std::max(begin, block * kCodes);
      const int64_t last = std::min(end, (block + 1) * kCodes);
      for (int64_t column = 0; column < matrix.columns; column += kColumns) {
        const int64_t count = std::min(kColumns, matrix.columns - column);
        matrix.decode(block, column, count, tile.data());
        for (int64_t row = first; row < last; ++row) {
          ops::narrow(tile.data() + (row - block * kCodes) * kColumns,
                      out + (row - begin) * matrix.columns + column, count);
        }
      }
    }
  });
}

std::span<const std::byte> part_of(std::span<const std::byte> bytes, int64_t expert,
                                   int64_t experts) {
  const size_t size = bytes.size() / static_cast<size_t>(experts);
  return bytes.subspan(static_cast<size_t>(expert) * size, size);
}

const uint8_t* pointer(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

}  // namespace

void read_mxfp4(const hf::ModelFolder& folder, const hf::Mxfp4Weight& weight, int64_t begin,
                const at::Tensor& out) {
  const int64_t experts = weight.shape[0], rows = weight.shape[1], columns = weight.shape[2];
  const bool is_direct = out.is_cpu() && out.scalar_type() == at::kBFloat16 && out.is_contiguous();
  // Whole rows are decoded, as many as there is room for.
  const int64_t at_once = std::max<int64_t>(1, kReadAtOnce / columns);
  const int64_t end = begin + out.numel();
  at::Tensor buffer;
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / columns, expert = row / rows;
    const auto blocks = part_of(folder.bytes(*weight.blocks), expert, experts);
    const auto scales = part_of(folder.bytes(*weight.scales), expert, experts);
    const Matrix matrix{pointer(blocks), pointer(scales), rows, columns};
    const int64_t last_row =
        std::min({row + at_once, (expert + 1) * rows, (end + columns - 1) / columns});
    const int64_t next = std::min(end, last_row * columns);
    const at::Tensor part = out.narrow(0, at - begin, next - at);
    if (is_direct && at == row * columns && next == last_row * columns) {
      decode_rows(matrix, row - expert * rows, last_row - expert * rows,
                  static_cast<uint16_t*>(part.mutable_data_ptr()));
    } else {
      if (!buffer.defined()) buffer = at::empty({at_once * columns}, at::dtype(at::kBFloat16));
      decode_rows(matrix, row - expert * rows, last_row - expert * rows,
                  static_cast<uint16_t*>(buffer.mutable_data_ptr()));
      part.copy_(buffer.narrow(0, at - row * columns, next - at));
    }
    if (last_row == (expert + 1) * rows || next == end) {
      forget_pages(blocks);
      forget_pages(scales);
    }
    at = next;
  }
}

}  // namespace strata::shard
