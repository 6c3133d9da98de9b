#include "strata/comm/group.h"

#include "strata/base/error.h"

namespace strata::comm {

std::string_view name_of(Transport transport) {
  constexpr std::string_view kNames[] = {"single", "shm", "gloo", "nccl", "fake"};
  return kNames[static_cast<size_t>(transport)];
}

Group::Use::Use(Group& group, const char* call) : group_(group) {
  if (!group.is_in_use_.exchange(true, std::memory_order_acquire)) return;
  throw InternalError(
      "collective {} of rank {}: found another thread that uses the group, expected one at a time; "
      "report this as a bug",
      call, group.rank());
}

std::unique_ptr<Work> Group::all_gather(at::Tensor out, at::Tensor in) {
  const Use use(*this, "all-gather");
  return start_all_gather(std::move(out), std::move(in));
}

std::unique_ptr<Work> Group::reduce_scatter(at::Tensor out, at::Tensor in) {
  const Use use(*this, "reduce-scatter");
  return start_reduce_scatter(std::move(out), std::move(in));
}

std::unique_ptr<Work> Group::all_reduce(at::Tensor tensor, Reduction op) {
  const Use use(*this, "all-reduce");
  return start_all_reduce(std::move(tensor), op);
}

std::unique_ptr<Work> Group::broadcast(at::Tensor tensor, int root) {
  const Use use(*this, "broadcast");
  return start_broadcast(std::move(tensor), root);
}

void Group::barrier() {
  const Use use(*this, "barrier");
  meet();
}

std::unique_ptr<Work> Group::all_to_all(at::Tensor out, at::Tensor in) {
  const Use use(*this, "all-to-all");
  return start_all_to_all(std::move(out), std::move(in));
}

std::unique_ptr<Work> Group::scatter(at::Tensor out, at::Tensor in, int root) {
  const Use use(*this, "scatter");
  return start_scatter(std::move(out), std::move(in), root);
}

void Group::count_all_gather(const at::Tensor& in) {
  ++traffic_.all_gathers;
  traffic_.sent_bytes += static_cast<int64_t>(in.nbytes()) * (size() - 1);
}

void Group::count_reduce_scatter(const at::Tensor& out) {
  ++traffic_.reduce_scatters;
  traffic_.sent_bytes += static_cast<int64_t>(out.nbytes()) * (size() - 1);
}

void Group::count_all_reduce(const at::Tensor& tensor) {
  ++traffic_.all_reduces;
  traffic_.sent_bytes += static_cast<int64_t>(tensor.nbytes()) * 2 * (size() - 1) / size();
}

void Group::count_all_to_all(const at::Tensor& in) {
  ++traffic_.all_to_alls;
  traffic_.sent_bytes += static_cast<int64_t>(in.nbytes()) / size() * (size() - 1);
}

void Group::count_scatter(const at::Tensor& out, int root) {
  if (rank() != root) return;
  traffic_.sent_bytes += static_cast<int64_t>(out.nbytes()) * (size() - 1);
}

}  // namespace strata::comm
