// A group of any size without other processes: every other rank is imagined to hold what this rank
// holds. For dry runs of schedules and plans at world sizes that no test machine has. Counts
// traffic.
#pragma once

#include <cstdint>

#include "strata/comm/group.h"

namespace strata::comm {

struct Traffic {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  // Bytes that one rank sends when each collective moves the least that its definition allows:
  // (n - 1) / n of the whole for gather and scatter, twice that for all-reduce.
  int64_t sent_bytes = 0;
};

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
  const Traffic& traffic() const { return traffic_; }

 private:
  int rank_;
  int size_;
  Traffic traffic_;
};

}  // namespace strata::comm
