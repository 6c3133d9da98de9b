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
  count_all_gather(in);
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::reduce_scatter(at::Tensor out, at::Tensor in) {
  out.copy_(in.view({size_, -1})[rank_] * size_);
  count_reduce_scatter(out);
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::all_reduce(at::Tensor tensor, Reduction op) {
  if (op == Reduction::kSum) tensor.mul_(size_);
  count_all_reduce(tensor);
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::broadcast(at::Tensor, int) { return completed_work(); }

}  // namespace strata::comm
