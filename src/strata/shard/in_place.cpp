#include "strata/shard/in_place.h"

#include <ATen/ATen.h>

#include "strata/libtorch/planned_device.h"

namespace strata::shard {
namespace {

// Elements converted at a time, through a block of their own: 128 KiB of 16-bit values, which stay
// in the second-level cache.
constexpr int64_t kBlock = 1 << 16;
// On a GPU a launch costs more than memory.
constexpr int64_t kBlockOnGpu = 1 << 24;

at::Tensor block_of(const at::Tensor& buffer, at::ScalarType type) {
  return at::empty({std::min(conversion_block(buffer.device()), buffer.numel())},
                   buffer.options().dtype(type));
}

}  // namespace

int64_t conversion_block(at::Device device) { return is_for_cuda(device) ? kBlockOnGpu : kBlock; }

bool is_16_bit(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

at::Tensor narrow_tail(const at::Tensor& buffer, at::ScalarType type) {
  return buffer.view(type).narrow(0, buffer.numel(), buffer.numel());
}

at::Tensor narrow_head(const at::Tensor& buffer, at::ScalarType type) {
  return buffer.view(type).narrow(0, 0, buffer.numel());
}

// Front to back: reading position 2n + 2i bytes stays at or ahead of writing position 4i.
void widen_in_place(at::Tensor buffer, at::ScalarType type) {
  const at::Tensor narrow = narrow_tail(buffer, type);
  const at::Tensor block = block_of(buffer, type);
  if (buffer.is_meta()) return;
  for (int64_t i = 0; i < buffer.numel(); i += block.numel()) {
    const int64_t length = std::min(block.numel(), buffer.numel() - i);
    const at::Tensor part = block.narrow(0, 0, length);
    part.copy_(narrow.narrow(0, i, length));
    buffer.narrow(0, i, length).copy_(part);
  }
}

// Front to back: writing position 2i stays at or behind reading position 4i.
void narrow_in_place(at::Tensor buffer, at::ScalarType type) {
  const at::Tensor narrow = narrow_head(buffer, type);
  const at::Tensor block = block_of(buffer, type);
  if (buffer.is_meta()) return;
  for (int64_t i = 0; i < buffer.numel(); i += block.numel()) {
    const int64_t length = std::min(block.numel(), buffer.numel() - i);
    const at::Tensor part = block.narrow(0, 0, length);
    part.copy_(buffer.narrow(0, i, length));
    narrow.narrow(0, i, length).copy_(part);
  }
}

}  // namespace strata::shard
