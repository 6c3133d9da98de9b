// A group of any size without other processes: every other rank is imagined to hold what this rank
// holds. For dry runs of schedules and plans at world sizes that no test machine has. Counts
// traffic.
#pragma once

#include "strata/comm/group.h"

namespace strata::comm {

class FakeGroup final : public Group {
 public:
  FakeGroup(int rank, int size);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "fake"; }
  std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in) override;
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, Reduction op) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root) override;
  void barrier() override {}

 private:
  int rank_;
  int size_;
};

}  // namespace strata::comm
