#include "strata/comm/fake_group.h"

#include "strata/base/error.h"
#include "strata/comm/single_group.h"

namespace strata::comm {

FakeGroup::FakeGroup(int rank, int size) : rank_(rank), size_(size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw ConfigError("fake process group: found rank {} of {}, expected 0 <= rank < size", rank,
                      size);
  }
}

std::unique_ptr<Work> FakeGroup::all_gather(at::Tensor out, at::Tensor in) {
  const at::Tensor copy = in.clone();
  out.view({size_, -1}).copy_(copy.unsqueeze(0).expand({size_, copy.numel()}));
  ++traffic_.all_gathers;
  traffic_.sent_bytes += static_cast<int64_t>(in.nbytes()) * (size_ - 1);
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::reduce_scatter(at::Tensor out, at::Tensor in) {
  out.copy_(in.view({size_, -1})[rank_] * size_);
  ++traffic_.reduce_scatters;
  traffic_.sent_bytes += static_cast<int64_t>(out.nbytes()) * (size_ - 1);
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::all_reduce(at::Tensor tensor, Reduction op) {
  if (op == Reduction::kSum) tensor.mul_(size_);
  ++traffic_.all_reduces;
  traffic_.sent_bytes += static_cast<int64_t>(tensor.nbytes()) * 2 * (size_ - 1) / size_;
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::broadcast(at::Tensor, int) { return completed_work(); }

}  // namespace strata::comm
