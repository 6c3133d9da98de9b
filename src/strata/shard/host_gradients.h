// Gradients on their way from the computing device to homes in host memory. Owns: the copies under
// way, and the memory where a gradient waits to be added to its home. Never: their order.
#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "strata/libtorch/side_stream.h"
#include "strata/shard/slot_pool.h"

namespace strata::shard {

// Threads: one.
// Stream: copies run beside the caller's stream, after what it had when they began.
class HostGradients {
 public:
  // `device`: where gradients come from. `pool`: whose buffers they are. `make_staging`: memory
  // beside the homes, fp32, as large as the largest of them; asked for when a first one is added.
  HostGradients(at::Device device, SlotPool& pool, std::function<at::Tensor()> make_staging)
      : device_(device), pool_(pool), make_staging_(std::move(make_staging)), stream_(device) {}

  // Starts the way of the gradient in `buffer` to `home`, over what is there or added to it. The
  // buffer goes back to the pool. Requires: as many elements of fp32 in both.
  void send(const at::Tensor& home, at::Tensor buffer, bool overwrite);
  // Returns when all that was sent is in its home.
  void finish();

 private:
  // Adds the gradient that arrived in the staging memory last to its home.
  void add_arrived();

  struct Leaving {
    at::Tensor buffer;
    StreamMark left;
  };
  struct Arriving {
    at::Tensor home, staged;
    StreamMark arrived;
  };

  at::Device device_;
  SlotPool& pool_;
  std::function<at::Tensor()> make_staging_;
  SideStream stream_;
  at::Tensor staging_;
  std::optional<Leaving> leaving_;
  std::optional<Arriving> arriving_;
};

}  // namespace strata::shard
