// A group of any size without other processes: every other rank is imagined to hold what this rank
// holds. For dry runs of schedules and plans at world sizes that no test machine has. Counts
// traffic.
#pragma once

#include "strata/comm/group.h"
#include "strata/comm/spare_buffers.h"

namespace strata::comm {

// Whose memory a fake group takes where its tensors have no data (device "meta", the memory plan;
// nothing is moved then). kGloo: a whole flat copy while an all-gather is in flight, and a kept
// receive buffer of the reduce-scatter, and of a sum of 16 bits a padded copy and what arrives.
// kSharedMemory: what every rank of the group shares, beside
// the tensors. kDirect: none, as NCCL, whose buffers belong to the process.
enum class Imitated { kGloo, kSharedMemory, kDirect };

class FakeGroup final : public Group {
 public:
  FakeGroup(int rank, int size, Imitated imitated = Imitated::kGloo);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Transport transport() const override { return Transport::kFake; }
  // What the imitated transport takes in this process, apart from tensors.
  int64_t process_bytes() const;

 private:
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) override;
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override;
  std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, Reduction op) override;
  std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root) override;
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) override;
  std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int root) override;
  void meet() override {}

  int rank_;
  int size_;
  Imitated imitated_;
  SpareBuffers spare_;
};

}  // namespace strata::comm
