#include "strata/comm/watched_group.h"

#include "strata/base/activity_timer.h"
#include "strata/comm/liveness.h"

namespace strata::comm {
namespace {

class WatchedWork final : public Work {
 public:
  WatchedWork(std::unique_ptr<Work> work, Status& status, const char* collective,
              const std::string& group, uint64_t number)
      : work_(std::move(work)),
        status_(status),
        collective_(collective),
        group_(group),
        number_(number) {}

  void wait() override {
    const ActivityTimer timer(Activity::kCollectives);
    const Status::Waiting waiting(status_, collective_, group_, number_);
    work_->wait();
  }

 private:
  std::unique_ptr<Work> work_;
  Status& status_;
  const char* collective_;
  const std::string& group_;
  uint64_t number_;
};

class WatchedGroup final : public Group, public Liveness {
 public:
  WatchedGroup(std::unique_ptr<Group> group, std::string name, Status& status)
      : group_(std::move(group)), name_(std::move(name)), status_(status) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  Transport transport() const override { return group_->transport(); }
  std::optional<int64_t> received_bytes() const override { return group_->received_bytes(); }
  void require_alive() const override { comm::require_alive(*group_); }
  bool has_lost_peer() const override { return comm::has_lost_peer(*group_); }

 private:
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) override {
    const ActivityTimer timer(Activity::kCollectives);
    count_all_gather(in);
    return watched("all-gather", group_->all_gather(std::move(out), std::move(in)));
  }
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override {
    const ActivityTimer timer(Activity::kCollectives);
    count_reduce_scatter(out);
    return watched("reduce-scatter", group_->reduce_scatter(std::move(out), std::move(in)));
  }
  std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, Reduction op) override {
    const ActivityTimer timer(Activity::kCollectives);
    count_all_reduce(tensor);
    return watched("all-reduce", group_->all_reduce(std::move(tensor), op));
  }
  std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root) override {
    const ActivityTimer timer(Activity::kCollectives);
    return watched("broadcast", group_->broadcast(std::move(tensor), root));
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) override {
    const ActivityTimer timer(Activity::kCollectives);
    count_all_to_all(in);
    return watched("all-to-all", group_->all_to_all(std::move(out), std::move(in)));
  }
  std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int root) override {
    const ActivityTimer timer(Activity::kCollectives);
    count_scatter(out, root);
    return watched("scatter", group_->scatter(std::move(out), std::move(in), root));
  }
  void meet() override {
    const ActivityTimer timer(Activity::kCollectives);
    const Status::Waiting waiting(status_, "barrier", name_, ++number_);
    group_->barrier();
  }

  std::unique_ptr<Work> watched(const char* collective, std::unique_ptr<Work> work) {
    return std::make_unique<WatchedWork>(std::move(work), status_, collective, name_, ++number_);
  }

  std::unique_ptr<Group> group_;
  std::string name_;
  Status& status_;
  uint64_t number_ = 0;  // of the last collective
};

}  // namespace

std::unique_ptr<Group> watch(std::unique_ptr<Group> group, std::string name, Status& status) {
  return std::make_unique<WatchedGroup>(std::move(group), std::move(name), status);
}

}  // namespace strata::comm
