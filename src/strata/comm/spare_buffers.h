// Receive buffers of collectives, kept for the next collective of the same size: after the first
// step none is allocated. Owns: the buffers that are not lent. Never: communication.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/libtorch/memory_kind.h"

namespace strata::comm {

// Threads: one.
class SpareBuffers {
 public:
  // A tensor of the same size, type and device with undefined content.
  at::Tensor lend(const at::Tensor& like) {
    for (size_t i = 0; i < spare_.size(); ++i) {
      if (spare_[i].numel() != like.numel() || spare_[i].scalar_type() != like.scalar_type() ||
          spare_[i].device() != like.device()) {
        continue;
      }
      at::Tensor found = std::move(spare_[i]);
      spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
    const MemoryScope scope(MemoryKind::kCommunication);
    return at::empty_like(like);
  }

  void take_back(at::Tensor buffer) { spare_.push_back(std::move(buffer)); }

 private:
  std::vector<at::Tensor> spare_;
};

}  // namespace strata::comm
