// What ranks of one machine share: a piece of memory each, and a socket between every two of them
// that tells when one is gone. Owns: mapping the pieces, waiting for each other, noticing the dead.
// Never: what the memory means to a collective (shm_group.h).
//
// The memory is anonymous (memfd): it needs no /dev/shm, has no name and goes with the last rank
// that maps it, however the ranks end.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/comm/rendezvous.h"

namespace strata::comm {

// The collective that a piece in flight belongs to; every rank compares its own with its peers'.
struct ShmOperation {
  uint64_t number = 0;  // of the group's collectives, from 1
  int32_t kind = 0;
  int32_t element = 0;
  int64_t count = 0;
  bool operator==(const ShmOperation&) const = default;
};

// The head of a rank's memory. Only its rank writes it, except `doorbell`, which the others ring.
struct ShmHead {
  uint64_t nonce[2];
  alignas(64) std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> is_asleep;
  // Phases are numbered alike on all ranks: the last one whose data lies here, and the last one in
  // which this rank has read all it needs of the others.
  alignas(64) std::atomic<uint64_t> published;
  alignas(64) std::atomic<uint64_t> consumed;
  alignas(64) ShmOperation operation[2];  // of the piece in each half
};

enum class WaitEnd { kReached, kPeerGone, kTimeout, kInterrupted };

// Memory: 2 halves of kHalfBytes a rank, touched only when used.
// Threads: one after connecting, except interrupt() and has_lost_peer().
class ShmLink {
 public:
  // Small enough to stay in the second-level cache between a writer and its readers.
  static constexpr size_t kHalfBytes = size_t{512} << 10;

  struct Peer {
    int world_rank = 0;
    Descriptor socket;  // none to itself
    std::byte* memory = nullptr;
  };

  // Collective over `ranks` (world ranks, this process's among them). Null when not all of them can
  // share memory: then all get null. `reason`: why, where they are on one machine. Throws CommError
  // when a rank goes meanwhile.
  static std::unique_ptr<ShmLink> connect(Rendezvous& rendezvous, const std::string& name,
                                          const std::vector<int>& ranks, std::string& reason);

  ShmLink(int rank, std::vector<Peer> peers) : rank_(rank), peers_(std::move(peers)) {}
  ~ShmLink();
  ShmLink(const ShmLink&) = delete;
  ShmLink& operator=(const ShmLink&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  int world_rank(int rank) const { return peers_[static_cast<size_t>(rank)].world_rank; }
  ShmHead& head(int rank) {
    return *reinterpret_cast<ShmHead*>(peers_[static_cast<size_t>(rank)].memory);
  }
  // Where the data of a rank's piece lies.
  std::byte* half(int rank, uint64_t piece);

  // Tells the others that `published` or `consumed` of this rank has grown.
  void ring();
  // Waits until `counter` of rank `awaited` is at least `value`.
  WaitEnd wait(int awaited, const std::atomic<uint64_t>& counter, uint64_t value,
               std::chrono::milliseconds timeout);
  // From another thread: ends a wait.
  void interrupt();
  // Tells the others that this rank is gone, for its thread's last word.
  void leave();
  // Whether a rank has ended or left.
  bool has_lost_peer() const;

 private:
  bool is_gone(int rank) const;

  int rank_;
  mutable std::mutex sockets_mutex_;
  std::vector<Peer> peers_;
  std::atomic<bool> is_interrupted_{false};
};

}  // namespace strata::comm
