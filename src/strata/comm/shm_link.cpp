// Doorbells: a rank that waits sleeps on its own (futex), those that it may wait for ring it.
#include "strata/comm/shm_link.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <ctime>

#include "strata/comm/shm_memory.h"

namespace strata::comm {
namespace {

using Clock = std::chrono::steady_clock;

// A few microseconds: longer would take a core from a rank that computes.
constexpr int kSpins = 200;
// How soon a peer that went away is noticed.
constexpr std::chrono::milliseconds kLook{50};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::milliseconds limit) {
  timespec time{};
  time.tv_sec = limit.count() / 1000;
  time.tv_nsec = limit.count() % 1000 * 1000000;
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

void ring_bell(ShmHead& head) {
  head.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (head.is_asleep.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &head.doorbell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

ShmLink::~ShmLink() {
  for (Peer& peer : peers_) ::munmap(peer.memory, kShmBytes);
}

std::byte* ShmLink::half(int rank, uint64_t piece) {
  return peers_[static_cast<size_t>(rank)].memory + kShmHeadBytes + piece % 2 * kHalfBytes;
}

void ShmLink::ring() {
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) ring_bell(head(r));
  }
}

void ShmLink::interrupt() {
  is_interrupted_.store(true);
  ring_bell(head(rank_));
}

void ShmLink::leave() {
  const std::lock_guard lock(sockets_mutex_);
  for (Peer& peer : peers_) peer.socket = Descriptor();
}

bool ShmLink::has_lost_peer() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (is_gone(rank)) return true;
  }
  return false;
}

bool ShmLink::is_gone(int rank) const {
  const std::lock_guard lock(sockets_mutex_);
  pollfd socket{peers_[static_cast<size_t>(rank)].socket.get(), POLLIN, 0};
  // Nothing is ever sent after connecting: whatever there is to read is the end.
  return socket.fd >= 0 && ::poll(&socket, 1, 0) > 0;
}

WaitEnd ShmLink::wait(int awaited, const std::atomic<uint64_t>& counter, uint64_t value,
                      std::chrono::milliseconds timeout) {
  const auto is_reached = [&] { return counter.load(std::memory_order_acquire) >= value; };
  for (int i = 0; i < kSpins; ++i) {
    if (is_reached()) return WaitEnd::kReached;
    pause_briefly();
  }
  const auto deadline = Clock::now() + timeout;
  auto next_look = Clock::now() + kLook;
  ShmHead& own = head(rank_);
  while (true) {
    const uint32_t bell = own.doorbell.load(std::memory_order_seq_cst);
    own.is_asleep.store(1, std::memory_order_seq_cst);
    if (!is_reached() && !is_interrupted_.load()) futex_wait(own.doorbell, bell, kLook);
    own.is_asleep.store(0, std::memory_order_relaxed);
    if (is_reached()) return WaitEnd::kReached;
    if (is_interrupted_.load()) return WaitEnd::kInterrupted;
    const auto now = Clock::now();
    if (now < next_look) continue;
    next_look = now + kLook;
    if (is_gone(awaited)) return is_reached() ? WaitEnd::kReached : WaitEnd::kPeerGone;
    if (now >= deadline) return WaitEnd::kTimeout;
  }
}

}  // namespace strata::comm
