#include "strata/comm/device_group.h"

#include <functional>
#include <set>

#include "strata/base/error.h"
#include "strata/comm/liveness.h"
#include "strata/comm/nccl_group.h"
#include "strata/comm/staged_group.h"
#include "strata/comm/store_texts.h"
#include "strata/libtorch/cuda_build.h"

namespace strata::comm {
namespace {

class DeviceGroup final : public Group, public Liveness {
 public:
  using Connect = std::function<std::unique_ptr<Group>()>;

  // `connect`: makes the device's group when it is first needed, which is at the same collective on
  // every rank: most groups of a run carry tensors of the host alone.
  DeviceGroup(std::shared_ptr<Group> host, Transport transport, Connect connect)
      : host_(std::move(host)), transport_(transport), connect_(std::move(connect)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Transport transport() const override { return transport_; }
  std::optional<int64_t> received_bytes() const override { return host_->received_bytes(); }
  void require_alive() const override {
    if (device_) comm::require_alive(*device_);
  }
  bool has_lost_peer() const override { return comm::has_lost_peer(*host_); }

 private:
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) override {
    count_all_gather(in);
    return of(out).all_gather(out, std::move(in));
  }
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override {
    count_reduce_scatter(out);
    return of(out).reduce_scatter(out, std::move(in));
  }
  std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, Reduction op) override {
    count_all_reduce(tensor);
    return of(tensor).all_reduce(tensor, op);
  }
  std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root) override {
    return of(tensor).broadcast(tensor, root);
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) override {
    count_all_to_all(in);
    return of(out).all_to_all(out, std::move(in));
  }
  std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int root) override {
    count_scatter(out, root);
    return of(out).scatter(out, std::move(in), root);
  }
  void meet() override { host_->barrier(); }

  Group& of(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return *host_;
    if (!device_) device_ = connect_();
    return *device_;
  }

  std::shared_ptr<Group> host_;  // a staged group sends through it, too
  Transport transport_;
  Connect connect_;
  std::unique_ptr<Group> device_;
};

// Whether no GPU serves two of the ranks: NCCL refuses those.
bool have_own_gpus(Rendezvous& rendezvous, const std::vector<int>& ranks) {
  const std::vector<std::string> found = names_of_gpus(rendezvous, ranks);
  const std::set<std::string> names(found.begin(), found.end());
  return names.size() == ranks.size();
}

}  // namespace

std::vector<std::string> names_of_gpus(Rendezvous& rendezvous, const std::vector<int>& ranks) {
  std::string own;
  if constexpr (kHasCuda) own = name_of_gpu(rendezvous.options().device);
  if (ranks.size() == 1) return {own};
  const auto key = [](int rank) { return "gpu/" + std::to_string(rank); };
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(key(rank));
  try {
    set_text(rendezvous.store(), key(rendezvous.options().rank), own);
    return texts_of(rendezvous.store(), keys);
  } catch (const std::exception& error) {  // of the store
    throw CommError(
        "GPUs of ranks {}: found ranks that did not name theirs ({}), expected every rank to take "
        "part; look at the first failing rank's message",
        fmt::join(ranks, ", "), error.what());
  }
}

std::unique_ptr<Group> make_device_group(Rendezvous& rendezvous, const std::string& name,
                                         const std::vector<int>& ranks,
                                         std::unique_ptr<Group> host) {
  if constexpr (kHasCuda) {
    const at::Device device = rendezvous.options().device;
    if (have_own_gpus(rendezvous, ranks)) {
      const std::shared_ptr<Group> of_host = std::move(host);
      return std::make_unique<DeviceGroup>(
          of_host, Transport::kNccl, [&rendezvous, name, ranks, device, of_host] {
            return make_nccl_group(rendezvous, name, ranks, device,
                                   [of_host] { return has_lost_peer(*of_host); });
          });
    }
  }
  const std::shared_ptr<Group> shared = std::move(host);
  return std::make_unique<DeviceGroup>(shared, shared->transport(),
                                       [shared] { return make_staged_group(shared); });
}

}  // namespace strata::comm
