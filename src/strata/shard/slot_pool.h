// Reusable buffers for gathered units and whole gradients. After the first step every request is
// met by a buffer that an earlier release gave back, so the steady state allocates nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace strata::shard {

// Memory: holds at most the largest number of buffers of each size that were in use at once.
// Threads: one.
class SlotPool {
 public:
  using Allocate = std::function<at::Tensor(int64_t numel, at::ScalarType type)>;

  // `allocate`: where new buffers come from; default: the device's allocator.
  explicit SlotPool(at::Device device, Allocate allocate = {})
      : device_(device), allocate_(std::move(allocate)) {}

  // A flat buffer of exactly `numel` elements; its content is undefined.
  at::Tensor acquire(int64_t numel, at::ScalarType type);
  void give_back(at::Tensor buffer);
  // Frees what was given back: for buffers of a size that the steps do not ask for.
  void clear();

  int64_t allocated_bytes() const { return allocated_bytes_; }
  int64_t num_allocations() const { return num_allocations_; }

 private:
  at::Device device_;
  Allocate allocate_;
  std::vector<at::Tensor> free_;
  int64_t allocated_bytes_ = 0;
  int64_t num_allocations_ = 0;
};

}  // namespace strata::shard
