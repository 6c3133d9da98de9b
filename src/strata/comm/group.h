// A group of ranks and its collectives, over whichever transport. Owns: the interface, the count of
// what was sent, the proof that one thread at a time asks for something. Never: moves data.
// Collective: every rank of the group must call the same methods in the same order.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace strata::comm {

// An operation in flight. The tensors passed to the call must stay alive and untouched until
// wait().
class Work {
 public:
  virtual ~Work() = default;
  // Returns when the result is usable (on the current stream for accelerators). Throws CommError.
  virtual void wait() = 0;
};

enum class Reduction { kSum, kMax };

// What carries a group's tensors.
enum class Transport : uint8_t { kSingle, kSharedMemory, kGloo, kNccl, kFake };
std::string_view name_of(Transport transport);  // for display: "shm", "gloo", ...

// What this rank had to send by theory: the least that each collective's definition allows. Of n
// ranks and N bytes in whole, (n - 1) / n * N for gather, all-to-all and scatter (a scatter's on
// its root alone), twice that for all-reduce. What really moved is measured elsewhere:
// received_bytes() of shared memory, tcp_sent_bytes() of TCP.
struct Traffic {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t all_to_alls = 0;
  int64_t sent_bytes = 0;
};

// Threads: one at a time, though not always the same, calls collectives and waits for their works.
// One that comes while another's collective starts, or its wait() works on what belongs to the
// group (Use), gets an InternalError. rank(), size() and transport(): any.
class Group {
 public:
  Group() = default;
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Transport transport() const = 0;

  // `out` [size * n] = every rank's `in` [n], in rank order. `in` may be out's own slice.
  std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in);
  // `out` [n] = sum over ranks of their in[rank * n .. (rank + 1) * n). `in` [size * n] may be
  // changed.
  std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in);
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, Reduction op = Reduction::kSum);
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root);
  // Returns when every rank has called it.
  void barrier();
  // Part r of `out` [size * n] = part `rank` of rank r's `in` [size * n].
  std::unique_ptr<Work> all_to_all(at::Tensor out, at::Tensor in);
  // `out` [n] = the root's in[rank * n .. (rank + 1) * n). `in` [size * n] is read on the root
  // alone.
  std::unique_ptr<Work> scatter(at::Tensor out, at::Tensor in, int root);

  // Bytes that this rank has read out of other ranks' memory, counted where they are copied or
  // added. No value for a transport that does not see them.
  virtual std::optional<int64_t> received_bytes() const { return std::nullopt; }

  const Traffic& traffic() const { return traffic_; }

 protected:
  // The group is one thread's while this lives: every collective while it starts, and a wait() that
  // changes what belongs to the group.
  class Use {
   public:
    Use(Group& group, const char* call);
    ~Use() { group_.is_in_use_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Group& group_;
  };

  void count_all_gather(const at::Tensor& in);
  void count_reduce_scatter(const at::Tensor& out);
  void count_all_reduce(const at::Tensor& tensor);
  void count_all_to_all(const at::Tensor& in);
  void count_scatter(const at::Tensor& out, int root);

 private:
  // What a transport does, in the order of the collectives above.
  virtual std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) = 0;
  virtual std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) = 0;
  virtual std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, Reduction op) = 0;
  virtual std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root) = 0;
  virtual void meet() = 0;
  virtual std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) = 0;
  virtual std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int root) = 0;

  std::atomic<bool> is_in_use_ = false;
  Traffic traffic_;
};

}  // namespace strata::comm
