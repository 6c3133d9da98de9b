// A queue of collectives and the thread that runs them.
#include "strata/comm/shm_group.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "strata/base/error.h"
#include "strata/comm/blocked_signals.h"
#include "strata/comm/element_type.h"
#include "strata/comm/liveness.h"
#include "strata/comm/shm_collectives.h"

namespace strata::comm {
namespace {

// A request with the tensors it points into.
struct Pending {
  ShmRequest request;
  at::Tensor out, in;
  bool is_done = false;
  std::exception_ptr failure;
};

// Shared by the group, its thread and the works in flight, whichever lives longest.
struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Pending>> waiting;
  bool is_closed = false;

  void finish(Pending& pending, std::exception_ptr failure) {
    {
      std::lock_guard lock(mutex);
      pending.is_done = true;
      pending.failure = std::move(failure);
    }
    changed.notify_all();
  }
};

class ShmWork final : public Work {
 public:
  ShmWork(std::shared_ptr<Queue> queue, std::shared_ptr<Pending> pending)
      : queue_(std::move(queue)), pending_(std::move(pending)) {}

  void wait() override {
    if (!pending_) return;
    std::unique_lock lock(queue_->mutex);
    queue_->changed.wait(lock, [&] { return pending_->is_done; });
    const std::exception_ptr failure = pending_->failure;
    lock.unlock();
    pending_.reset();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  std::shared_ptr<Queue> queue_;
  std::shared_ptr<Pending> pending_;
};

class ShmGroup final : public Group, public Liveness {
 public:
  ShmGroup(std::unique_ptr<ShmLink> link, std::chrono::seconds timeout)
      : rank_(link->rank()),
        size_(link->size()),
        queue_(std::make_shared<Queue>()),
        collectives_(std::move(link), timeout) {
    const BlockedSignals blocked;
    mover_ = std::thread([this] { move_data(); });
  }
  ~ShmGroup() override {
    {
      std::lock_guard lock(queue_->mutex);
      queue_->is_closed = true;
    }
    queue_->changed.notify_all();
    collectives_.link().interrupt();
    mover_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Transport transport() const override { return Transport::kSharedMemory; }
  std::optional<int64_t> received_bytes() const override { return collectives_.received_bytes(); }
  bool has_lost_peer() const override { return collectives_.link().has_lost_peer(); }

 private:
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) override {
    require(out.numel() == in.numel() * size_ && out.scalar_type() == in.scalar_type(),
            "all-gather", out, in);
    count_all_gather(in);
    return start({.kind = Collective::kAllGather}, std::move(out), std::move(in));
  }
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override {
    require(in.numel() == out.numel() * size_ && out.scalar_type() == in.scalar_type(),
            "reduce-scatter", out, in);
    count_reduce_scatter(out);
    ShmRequest request{.kind = Collective::kReduceScatter, .element = element_of(in.scalar_type())};
    request.count = out.numel();
    return start(request, std::move(out), std::move(in));
  }
  std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, Reduction op) override {
    count_all_reduce(tensor);
    return start({.kind = Collective::kAllReduce,
                  .element = element_of(tensor.scalar_type()),
                  .fold = op == Reduction::kSum ? Fold::kSum : Fold::kMax},
                 tensor, tensor);
  }
  std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root) override {
    return start({.kind = Collective::kBroadcast, .root = root}, tensor, tensor);
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) override {
    require(in.numel() == out.numel() && in.numel() % size_ == 0 &&
                out.scalar_type() == in.scalar_type(),
            "all-to-all", out, in);
    count_all_to_all(in);
    ShmRequest request{.kind = Collective::kAllToAll};
    request.count = in.numel() / size_;
    return start(request, std::move(out), std::move(in));
  }
  std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int root) override {
    if (rank_ != root) in = out;
    require(in.numel() == out.numel() * (rank_ == root ? size_ : 1) &&
                out.scalar_type() == in.scalar_type(),
            "scatter", out, in);
    count_scatter(out, root);
    ShmRequest request{.kind = Collective::kScatter, .root = root};
    request.count = out.numel();
    return start(request, std::move(out), std::move(in));
  }
  void meet() override { start({}, at::Tensor(), at::Tensor())->wait(); }

  static void require(bool holds, const char* what, const at::Tensor& out, const at::Tensor& in) {
    if (holds && out.is_contiguous() && in.is_contiguous() && in.is_cpu() && out.is_cpu()) return;
    throw InternalError(
        "{} through shared memory: found {} elements of {} for {} of {}, expected contiguous CPU "
        "tensors of one type that fit the group; report this as a bug",
        what, in.numel(), at::toString(in.scalar_type()), out.numel(),
        at::toString(out.scalar_type()));
  }

  std::unique_ptr<Work> start(ShmRequest request, at::Tensor out, at::Tensor in) {
    if (in.defined()) {
      require(true, name_of(request.kind), out, in);
      if (request.count == 0) request.count = in.numel();
      request.element_bytes = in.element_size();
      request.type = static_cast<int32_t>(in.scalar_type());
      request.in = static_cast<const std::byte*>(in.const_data_ptr());
      request.out = static_cast<std::byte*>(out.data_ptr());
    }
    auto pending = std::make_shared<Pending>();
    pending->request = request;
    pending->out = std::move(out);
    pending->in = std::move(in);
    {
      std::lock_guard lock(queue_->mutex);
      queue_->waiting.push_back(pending);
    }
    queue_->changed.notify_all();
    return std::make_unique<ShmWork>(queue_, std::move(pending));
  }

  std::shared_ptr<Pending> next() {
    std::unique_lock lock(queue_->mutex);
    queue_->changed.wait(lock, [&] { return queue_->is_closed || !queue_->waiting.empty(); });
    if (queue_->waiting.empty()) return nullptr;
    auto pending = std::move(queue_->waiting.front());
    queue_->waiting.pop_front();
    return pending;
  }

  void move_data() {
    ::pthread_setname_np(::pthread_self(), "strata-shm");
    std::exception_ptr failure;  // the first; the ranks no longer agree on anything after it
    while (const auto pending = next()) {
      if (!failure) {
        try {
          collectives_.run(pending->request);
        } catch (...) {
          failure = std::current_exception();
          collectives_.link().leave();  // nobody shall wait for what does not come any more
        }
      }
      pending->out = pending->in = at::Tensor();
      queue_->finish(*pending, failure);
    }
  }

  int rank_;
  int size_;
  std::shared_ptr<Queue> queue_;
  ShmCollectives collectives_;
  std::thread mover_;
};

}  // namespace

std::unique_ptr<Group> make_shm_group(Rendezvous& rendezvous, const std::string& name,
                                      const std::vector<int>& ranks, std::string& reason,
                                      std::optional<std::chrono::seconds> timeout) {
  std::unique_ptr<ShmLink> link;
  try {
    link = ShmLink::connect(rendezvous, name, ranks, reason);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // of the store
    const std::string what = e.what();
    throw CommError(
        "process group \"{}\": found a failed peer ({}), expected every rank to take part; look at "
        "the first failing rank's message",
        name, what.substr(0, what.find('\n')));
  }
  if (!link) return nullptr;
  return std::make_unique<ShmGroup>(std::move(link),
                                    timeout.value_or(rendezvous.options().timeout));
}

}  // namespace strata::comm
