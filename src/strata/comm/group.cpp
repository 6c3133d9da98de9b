#include "strata/comm/group.h"

namespace strata::comm {

std::string_view name_of(Transport transport) {
  constexpr std::string_view kNames[] = {"single", "shm", "gloo", "nccl", "fake"};
  return kNames[static_cast<size_t>(transport)];
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
