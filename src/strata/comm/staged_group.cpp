#include "strata/comm/staged_group.h"

#include <ATen/ATen.h>

namespace strata::comm {
namespace {

at::Tensor host_memory(const at::Tensor& like) {
  return at::empty(like.sizes(),
                   like.options().device(at::kCPU).pinned_memory(like.device().is_cuda()));
}

// A copy: what the caller has may be in use on the device.
at::Tensor to_host(const at::Tensor& tensor) {
  at::Tensor copy = host_memory(tensor);
  return copy.copy_(tensor);
}

class StagedWork final : public Work {
 public:
  StagedWork(std::unique_ptr<Work> work, at::Tensor out, at::Tensor arrived)
      : work_(std::move(work)), out_(std::move(out)), arrived_(std::move(arrived)) {}

  void wait() override {
    if (!work_) return;
    work_->wait();
    work_.reset();
    // Pinned memory is given back after the copy, by libtorch's allocator for it.
    out_.copy_(arrived_, /*non_blocking=*/true);
    out_ = arrived_ = at::Tensor();
  }

 private:
  std::unique_ptr<Work> work_;
  at::Tensor out_, arrived_;
};

class StagedGroup final : public Group {
 public:
  explicit StagedGroup(std::shared_ptr<Group> host) : host_(std::move(host)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Transport transport() const override { return host_->transport(); }

 private:
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) override {
    count_all_gather(in);
    at::Tensor arrived = host_memory(out);
    auto work = host_->all_gather(arrived, to_host(in));
    return std::make_unique<StagedWork>(std::move(work), std::move(out), std::move(arrived));
  }
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override {
    count_reduce_scatter(out);
    at::Tensor arrived = host_memory(out);
    auto work = host_->reduce_scatter(arrived, to_host(in));
    return std::make_unique<StagedWork>(std::move(work), std::move(out), std::move(arrived));
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) override {
    count_all_to_all(in);
    at::Tensor arrived = host_memory(out);
    auto work = host_->all_to_all(arrived, to_host(in));
    return std::make_unique<StagedWork>(std::move(work), std::move(out), std::move(arrived));
  }
  std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, Reduction op) override {
    count_all_reduce(tensor);
    at::Tensor copy = to_host(tensor);
    auto work = host_->all_reduce(copy, op);
    return std::make_unique<StagedWork>(std::move(work), std::move(tensor), std::move(copy));
  }
  std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root) override {
    at::Tensor copy = to_host(tensor);
    auto work = host_->broadcast(copy, root);
    return std::make_unique<StagedWork>(std::move(work), std::move(tensor), std::move(copy));
  }
  std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int root) override {
    count_scatter(out, root);
    at::Tensor arrived = host_memory(out);
    auto work = host_->scatter(arrived, rank() == root ? to_host(in) : at::Tensor(), root);
    return std::make_unique<StagedWork>(std::move(work), std::move(out), std::move(arrived));
  }
  void meet() override { host_->barrier(); }

  std::shared_ptr<Group> host_;
};

}  // namespace

std::unique_ptr<Group> make_staged_group(std::shared_ptr<Group> host) {
  return std::make_unique<StagedGroup>(std::move(host));
}

}  // namespace strata::comm
