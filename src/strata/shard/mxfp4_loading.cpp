#include "strata/shard/mxfp4_loading.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/base/file.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/quant/kernels.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

namespace cpu = ops::quant::cpu;

std::span<const std::byte> part_of(std::span<const std::byte> bytes, int64_t expert,
                                   int64_t experts) {
  const size_t size = bytes.size() / static_cast<size_t>(experts);
  return bytes.subspan(static_cast<size_t>(expert) * size, size);
}

const uint8_t* pointer(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

// From an element of one expert on, at most `count` further ones: whole rows, or a part of one.
cpu::Window window_at(const cpu::Mxfp4Codes& matrix, int64_t element, int64_t count) {
  const int64_t row = element / matrix.columns, column = element % matrix.columns;
  if (column != 0 || count < matrix.columns) {
    return {row, row + 1, column, std::min(matrix.columns, column + count)};
  }
  return {row, std::min(matrix.rows, row + count / matrix.columns), 0, matrix.columns};
}

int64_t numel_of(const cpu::Window& window) {
  return (window.last_row - window.first_row) * (window.last_column - window.first_column);
}

}  // namespace

int64_t mxfp4_buffer_numel(const at::Tensor& out, int64_t columns) {
  const bool is_decoded_to = out.scalar_type() == at::kFloat || out.scalar_type() == at::kBFloat16;
  if (is_decoded_to && !is_for_cuda(out)) return 0;
  return std::min(out.numel(), std::max<int64_t>(1, kReadAtOnce / columns) * columns);
}

void read_mxfp4(const hf::ModelFolder& folder, const hf::Mxfp4Weight& weight, int64_t begin,
                const at::Tensor& out) {
  const int64_t experts = weight.shape[0], rows = weight.shape[1], columns = weight.shape[2];
  const int64_t at_once = mxfp4_buffer_numel(out, columns);
  const at::Tensor buffer =
      at_once > 0 ? at::empty({at_once}, at::dtype(at::kBFloat16)) : at::Tensor();
  for (int64_t done = 0; done < out.numel();) {
    const int64_t expert = (begin + done) / (rows * columns);
    const auto blocks = part_of(folder.bytes(*weight.blocks), expert, experts);
    const auto scales = part_of(folder.bytes(*weight.scales), expert, experts);
    const cpu::Mxfp4Codes matrix{pointer(blocks), pointer(scales), rows, columns};
    const int64_t left = out.numel() - done;
    const cpu::Window window = window_at(matrix, (begin + done) % (rows * columns),
                                         buffer.defined() ? std::min(left, at_once) : left);
    const at::Tensor part = out.narrow(0, done, numel_of(window));
    const at::Tensor decoded = buffer.defined() ? buffer.narrow(0, 0, part.numel()) : part;
    const bool is_wide = decoded.scalar_type() == at::kFloat;
    cpu::decode_mxfp4(matrix, window,
                      {.type = is_wide ? ops::Element::kFloat : ops::Element::kBFloat16,
                       .data = decoded.mutable_data_ptr(),
                       .stride = columns});
    if (buffer.defined()) part.copy_(decoded);
    done += part.numel();
    if (done == out.numel() || (begin + done) % (rows * columns) == 0) {
      forget_pages(blocks);
      forget_pages(scales);
    }
  }
}

}  // namespace strata::shard
