// Receive buffers of collectives, kept for the next collective of the same size: after the first
// step none is allocated. Owns: the buffers that are not lent. Never: communication.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "strata/libtorch/memory_kind.h"

namespace strata::comm {

// Threads: one.
class SpareBuffers {
 public:
  // A tensor of the same size, type and device with undefined content.
  at::Tensor lend(const at::Tensor& like) {
    if (at::Tensor found = take(like.numel(), like.options()); found.defined()) return found;
    const MemoryScope scope(MemoryKind::kCommunication);
    return at::empty_like(like);
  }

  // A flat one of so many elements.
  at::Tensor lend(int64_t numel, const at::TensorOptions& options) {
    if (at::Tensor found = take(numel, options); found.defined()) return found.view(-1);
    const MemoryScope scope(MemoryKind::kCommunication);
    return at::empty({numel}, options);
  }

  void take_back(at::Tensor buffer) { spare_.push_back(std::move(buffer)); }

 private:
  at::Tensor take(int64_t numel, const at::TensorOptions& options) {
    for (size_t i = 0; i < spare_.size(); ++i) {
      if (spare_[i].numel() != numel || spare_[i].dtype() != options.dtype() ||
          spare_[i].device() != options.device()) {
        continue;
      }
      at::Tensor found = std::move(spare_[i]);
      spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
    return {};
  }

  std::vector<at::Tensor> spare_;
};

// Elements of each rank's chunk of n, the last one filled up.
inline int64_t padded_chunk(int64_t n, int ranks) { return (n + ranks - 1) / ranks; }

}  // namespace strata::comm
