// The collectives of a shared-memory group, one after the other, on the calling thread. Owns: how
// data is cut into pieces and when a piece's place may be used again. Never: threads, tensors.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "strata/comm/rank_fold.h"
#include "strata/comm/shm_link.h"

namespace strata::comm {

enum class Collective {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kScatter,
  kAllToAll,
  kBarrier
};
const char* name_of(Collective kind);

// One collective on raw memory. `count` elements are those of the smaller side: a rank's share of a
// gather or scatter, what each rank gets of another, else the whole.
struct ShmRequest {
  Collective kind = Collective::kBarrier;
  Element element = Element::kUint8;  // of a fold
  Fold fold = Fold::kSum;
  int root = 0;
  int64_t count = 0;
  size_t element_bytes = 1;
  int32_t type = 0;  // compared between ranks
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

// A piece is what fits into one half of a rank's memory. Phases number what becomes readable:
// a rank publishes a phase when its part lies in its half, and has consumed it when it has read all
// it needs of the others'. The halves alternate, so that one piece is written while the other is
// read.
//
// Collective: run(), on every rank in the same order.
class ShmCollectives {
 public:
  ShmCollectives(std::unique_ptr<ShmLink> link, std::chrono::milliseconds timeout);

  // Returns when `out` is complete and `in` no longer needed. Throws CommError when a peer is gone,
  // late, or runs another collective; nothing works after that.
  void run(const ShmRequest& request);

  ShmLink& link() { return *link_; }
  const ShmLink& link() const { return *link_; }
  // What run() has read of other ranks' memory. From any thread.
  int64_t received_bytes() const { return received_bytes_.load(std::memory_order_relaxed); }

 private:
  void all_gather();
  void reduce_scatter();
  void all_reduce_small();
  void all_reduce();
  void broadcast();
  void scatter();
  void all_to_all();
  void barrier();

  void begin_piece();
  void publish();
  void consume();
  void await_published(int rank);
  // Waits for all ranks, this rank's own last.
  void await_all_published();
  void put_parts_for_others(size_t part, size_t share, size_t begin, size_t bytes);
  // Copies from a rank's half of this piece.
  void take(int rank, size_t from, std::byte* to, size_t bytes);
  // Adds what all ranks' inputs_ hold of this piece.
  void add_inputs(std::byte* to, size_t bytes);
  void count_received(size_t bytes);
  [[noreturn]] void fail(WaitEnd end, int rank);

  std::unique_ptr<ShmLink> link_;
  std::chrono::milliseconds timeout_;
  int rank_, size_;
  ShmRequest request_;
  ShmOperation operation_;
  uint64_t piece_ = 0;
  uint64_t phase_ = 0;
  uint64_t last_phase_[2] = {0, 0};  // of the last piece in each half
  std::vector<const std::byte*> inputs_;
  std::atomic<int64_t> received_bytes_{0};
};

}  // namespace strata::comm
