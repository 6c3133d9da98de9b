#include "strata/comm/gloo_group.h"

#include <cstring>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "strata/base/error.h"
#include "strata/comm/element_type.h"
#include "strata/comm/single_group.h"
#include "strata/comm/spare_buffers.h"
#include "strata/comm/store_texts.h"
#include "strata/comm/tcp.h"

namespace strata::comm {
namespace {

// What happened, without the source file at the start and the advice at the end.
std::string first_sentence(const std::string& text) {
  std::string reason = text.substr(0, text.find('\n'));
  if (reason.starts_with('[')) reason.erase(0, std::min(reason.find("] "), reason.size() - 2) + 2);
  return reason.substr(0, reason.find(". "));
}

// Runs a c10d or Gloo call and turns whatever it throws into a CommError. Gloo's own exceptions are
// not c10::Error, hence std::exception.
template <typename F>
auto translate(const char* collective, int rank, F&& call) {
  try {
    return call();
  } catch (const std::exception& e) {
    throw CommError(
        "collective {} of rank {}: found a failed peer ({}), expected every rank to take part; "
        "look "
        "at the first failing rank's message",
        collective, rank, first_sentence(e.what()));
  }
}

// Where the other ranks of the group reach this one. The name of rank 0's machine often means its
// loopback on that machine itself (/etc/hosts); then the others' addresses tell the right network.
std::string own_address(c10d::Store& store, const std::string& address_of_rank_0, int rank,
                        int size) {
  const auto key = [](int r) { return "address/" + std::to_string(r); };
  const std::string own = local_address_towards(address_of_rank_0);
  set_text(store, key(rank), own);
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(key(r));
  for (const std::string& other : texts_of(store, keys)) {
    if (is_loopback(own) && !is_loopback(other)) return local_address_towards(other);
  }
  return own;
}

std::shared_ptr<::gloo::transport::Device> make_device(c10d::Store& store,
                                                       const std::string& address_of_rank_0,
                                                       int rank, int size) {
  // The variable by which PyTorch's users choose a network.
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    const std::string first(interface, std::strcspn(interface, ","));
    return c10d::ProcessGroupGloo::createDeviceForInterface(first);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(
      own_address(store, address_of_rank_0, rank, size));
}

class GlooWork final : public Work {
 public:
  GlooWork(c10::intrusive_ptr<c10d::Work> work, const char* name, int rank,
           std::function<void()> finish = {})
      : work_(std::move(work)), name_(name), rank_(rank), finish_(std::move(finish)) {}

  void wait() override {
    if (!work_) return;
    translate(name_, rank_, [&] { return work_->wait(); });
    work_.reset();
    if (finish_) finish_();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  const char* name_;
  int rank_;
  std::function<void()> finish_;
};

class GlooGroup final : public Group {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> backend, int rank, int size)
      : backend_(std::move(backend)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Transport transport() const override { return Transport::kGloo; }

 private:
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) override {
    count_all_gather(in);
    return start("all-gather", [&] { return backend_->_allgather_base(out, in); });
  }

  // Gloo has no reduce-scatter (c10d emulates it by an all-reduce of the whole, which moves twice
  // the bytes, and does so only inside wait()). An all-to-all moves each chunk once to its owner,
  // progresses in the background, and lets the owner add in rank order: same sums on every run.
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override {
    count_reduce_scatter(out);
    at::Tensor received = spare_.lend(in);
    auto finish = [this, out, received]() mutable {
      const Use use(*this, "reduce-scatter");
      fold_chunks(received, out);
      spare_.take_back(received);
    };
    std::vector<int64_t> equal_splits;
    return start(
        "reduce-scatter",
        [&] { return backend_->alltoall_base(received, in, equal_splits, equal_splits); }, finish);
  }

  std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) override {
    count_all_to_all(in);
    std::vector<int64_t> equal_splits;
    // Gloo splits the first dimension.
    at::Tensor to = out.view({-1}), from = in.view({-1});
    return start("all-to-all",
                 [&] { return backend_->alltoall_base(to, from, equal_splits, equal_splits); });
  }

  std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, Reduction op) override {
    count_all_reduce(tensor);
    const bool is_16_bit = tensor.element_size() == 2;
    if (is_16_bit && op == Reduction::kSum) return sum_in_rank_order(std::move(tensor));
    c10d::AllreduceOptions options;
    options.reduceOp = op == Reduction::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    std::vector<at::Tensor> tensors{tensor};
    return start("all-reduce", [&] { return backend_->allreduce(tensors, options); });
  }

  std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{tensor};
    return start("broadcast", [&] { return backend_->broadcast(tensors, options); });
  }

  std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int root) override {
    count_scatter(out, root);
    c10d::ScatterOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> outputs{out};
    std::vector<std::vector<at::Tensor>> inputs;
    if (rank_ == root) inputs.push_back(in.chunk(size_));
    return start("scatter", [&] { return backend_->scatter(outputs, inputs, options); });
  }

  void meet() override {
    start("barrier", [&] { return backend_->barrier(); })->wait();
  }

  // out = the sum of the ranks' chunks, each as long as out.
  void fold_chunks(const at::Tensor& chunks, at::Tensor& out) const {
    std::vector<const std::byte*> inputs;
    for (int r = 0; r < size_; ++r) {
      inputs.push_back(static_cast<const std::byte*>(chunks.const_data_ptr()) +
                       static_cast<size_t>(r) * out.nbytes());
    }
    fold_in_rank_order(element_of(out.scalar_type()), Fold::kSum, inputs,
                       static_cast<std::byte*>(out.mutable_data_ptr()),
                       static_cast<size_t>(out.numel()));
  }

  // Gloo would round to 16 bits at every rank that it passes. Each rank sums a chunk in fp32 and
  // all get it: the same bytes on the wire. The second half runs inside wait().
  std::unique_ptr<Work> sum_in_rank_order(at::Tensor tensor) {
    const int64_t n = tensor.numel(), chunk = padded_chunk(n, size_);
    at::Tensor padded = spare_.lend(chunk * size_, tensor.options());
    at::Tensor received = spare_.lend(chunk * size_, tensor.options());
    padded.narrow(0, 0, n).copy_(tensor.view(-1));
    padded.narrow(0, n, chunk * size_ - n).zero_();
    auto finish = [this, tensor, padded, received, chunk, n]() mutable {
      const Use use(*this, "all-reduce");
      at::Tensor own = padded.narrow(0, rank_ * chunk, chunk);
      fold_chunks(received, own);
      translate("all-reduce", rank_,
                [&] { return backend_->_allgather_base(received, own)->wait(); });
      tensor.view(-1).copy_(received.narrow(0, 0, n));
      spare_.take_back(padded);
      spare_.take_back(received);
    };
    std::vector<int64_t> equal_splits;
    return start(
        "all-reduce",
        [&] { return backend_->alltoall_base(received, padded, equal_splits, equal_splits); },
        finish);
  }

  template <typename F>
  std::unique_ptr<Work> start(const char* name, F&& call, std::function<void()> finish = {}) {
    return std::make_unique<GlooWork>(translate(name, rank_, call), name, rank_, std::move(finish));
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend_;
  int rank_;
  int size_;
  SpareBuffers spare_;
};

}  // namespace

std::unique_ptr<Group> make_gloo_group(Rendezvous& rendezvous, const std::string& name,
                                       const std::vector<int>& ranks,
                                       std::optional<std::chrono::seconds> timeout) {
  const auto self = std::find(ranks.begin(), ranks.end(), rendezvous.options().rank);
  if (self == ranks.end()) {
    throw InternalError(
        "process group \"{}\": found rank {} asking for a group without it, expected "
        "a member; report this as a bug",
        name, rendezvous.options().rank);
  }
  const int rank = static_cast<int>(self - ranks.begin());
  const int size = static_cast<int>(ranks.size());
  auto options = c10d::ProcessGroupGloo::Options::create(rendezvous.options().timeout);
  return translate("connect", rank, [&]() -> std::unique_ptr<Group> {
    auto base = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&rendezvous.store());
    auto store = c10::make_intrusive<c10d::PrefixStore>("group/" + name, base);
    options->devices.push_back(make_device(*store, rendezvous.options().address, rank, size));
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    rendezvous.watch_connections();
    if (timeout) backend->setTimeout(*timeout);
    return std::make_unique<GlooGroup>(backend, rank, size);
  });
}

}  // namespace strata::comm
