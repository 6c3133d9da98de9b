// Finds out by doing it whether ranks can share memory: they name their machine, connect to each
// other's sockets and hand over their memory. Nothing is inferred from host names or addresses, so
// two containers of one machine and two machines of one name are told apart.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <limits>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/comm/shm_link.h"
#include "strata/comm/shm_memory.h"
#include "strata/comm/store_texts.h"

namespace strata::comm {

Descriptor make_shm_memory() {
  Descriptor memory(::memfd_create("strata", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0) return memory;
  if (::ftruncate(memory.get(), static_cast<off_t>(kShmBytes)) != 0) return Descriptor();
  ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return memory;
}

std::byte* map_shm_memory(const Descriptor& memory) {
  void* start =
      ::mmap(nullptr, kShmBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), /*offset=*/0);
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

namespace {

struct Nonce {
  uint64_t words[2] = {0, 0};
  std::string text() const { return fmt::format("{:016x}{:016x}", words[0], words[1]); }
};

// What a rank shows when it connects: that it has read the other's nonce from the store.
struct Hello {
  int32_t rank = -1;
  char nonce[32] = {};
};

// The machine since it was started; the same in all its containers.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id.empty() ? "unknown" : id;
}

// An abstract name: it exists in the network namespace, not in a file system.
struct SocketAddress {
  explicit SocketAddress(const std::string& nonce) {
    address.sun_family = AF_UNIX;
    const std::string name = "strata-" + nonce;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
};

bool send_memory(const Descriptor& socket, const Hello& hello, const Descriptor& memory) {
  Hello copy = hello;
  iovec data{&copy, sizeof(copy)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = memory.get();
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL) == sizeof(copy);
}

bool wait_until_readable(const Descriptor& socket, std::chrono::seconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + timeout;
  pollfd ready{socket.get(), POLLIN, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    const int64_t most = std::numeric_limits<int>::max();
    const int found = ::poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, most)));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) return false;  // a signal that the run will see to later
  }
}

// The memory that the other side sent, or none. Throws IoError where no file more may be opened:
// the system then drops what was sent.
Descriptor receive_memory(const Descriptor& socket, Hello& hello, std::chrono::seconds timeout) {
  if (!wait_until_readable(socket, timeout)) return Descriptor();
  iovec data{&hello, sizeof(hello)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC) != sizeof(hello)) return Descriptor();
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw IoError(
        "shared memory: found no room for another open file, expected one for each rank; raise the "
        "limit of open files (ulimit -n)");
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return Descriptor();
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
  return Descriptor(descriptor);
}

bool is_same_user(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

}  // namespace

// One rank's side. Steps, in the order of connect(): all ranks publish who they are; each connects
// to those before it, which needs nobody to answer; all publish how that went, so that all decide
// alike; only then does anyone wait for a peer.
class ShmHandshake {
 public:
  ShmHandshake(Rendezvous& rendezvous, const std::string& name, const std::vector<int>& ranks)
      : rendezvous_(rendezvous), prefix_("shm/" + name + "/"), ranks_(ranks) {
    const auto self = std::find(ranks.begin(), ranks.end(), rendezvous.options().rank);
    rank_ = static_cast<int>(self - ranks.begin());
    peers_.resize(ranks.size());
    for (size_t r = 0; r < ranks.size(); ++r) peers_[r].world_rank = ranks[r];
  }
  ~ShmHandshake() {
    for (ShmLink::Peer& peer : peers_) {
      if (peer.memory != nullptr) ::munmap(peer.memory, kShmBytes);
    }
  }

  std::unique_ptr<ShmLink> connect(std::string& reason) {
    std::string problem = prepare();
    exchange("who", boot_id() + " " + nonce_.text());
    const std::vector<std::string> who = others("who");
    const auto machine_of = [](const std::string& each) { return each.substr(0, each.find(' ')); };
    for (const std::string& each : who) {
      // Nothing was connected yet, and all see the same list: all leave here. Not compared with
      // what this rank knows of itself, which it may have failed to read.
      if (machine_of(each) != machine_of(who.front())) return nullptr;
    }
    if (problem.empty()) problem = connect_to_earlier(who);
    exchange("verdict", problem.empty() ? "ok" : problem);
    for (const std::string& verdict : others("verdict")) {
      if (verdict == "ok") continue;
      reason = verdict;
      return nullptr;
    }
    accept_later();
    finish_earlier();
    return std::make_unique<ShmLink>(rank_, std::exchange(peers_, {}));
  }

 private:
  std::string key(const std::string& what, size_t rank) const {
    return prefix_ + what + "/" + std::to_string(rank);
  }

  void exchange(const std::string& what, const std::string& value) {
    set_text(rendezvous_.store(), key(what, static_cast<size_t>(rank_)), value);
  }
  std::vector<std::string> others(const std::string& what) {
    std::vector<std::string> keys;
    for (size_t r = 0; r < ranks_.size(); ++r) keys.push_back(key(what, r));
    return texts_of(rendezvous_.store(), keys);
  }

  // Own memory and a socket to be reached at. Returns what failed.
  std::string prepare() {
    if (::getrandom(nonce_.words, sizeof(nonce_.words), 0) != sizeof(nonce_.words)) {
      return "no random numbers: " + errno_text(errno);
    }
    memory_ = make_shm_memory();
    if (memory_.get() < 0) return "no memory to share: " + errno_text(errno);
    ShmLink::Peer& self = peers_[static_cast<size_t>(rank_)];
    self.memory = map_shm_memory(memory_);
    if (self.memory == nullptr) return "memory cannot be mapped: " + errno_text(errno);
    std::memcpy(reinterpret_cast<ShmHead*>(self.memory)->nonce, nonce_.words, sizeof(nonce_.words));
    listener_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const SocketAddress address(nonce_.text());
    if (listener_.get() < 0 || ::bind(listener_.get(), address.raw(), address.size) != 0 ||
        ::listen(listener_.get(), static_cast<int>(ranks_.size())) != 0) {
      return "no local socket: " + errno_text(errno);
    }
    return "";
  }

  std::string connect_to_earlier(const std::vector<std::string>& who) {
    for (size_t r = 0; r < static_cast<size_t>(rank_); ++r) {
      const std::string nonce = who[r].substr(who[r].find(' ') + 1);
      Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      const SocketAddress address(nonce);
      if (socket.get() < 0 || ::connect(socket.get(), address.raw(), address.size) != 0) {
        return fmt::format("rank {} does not reach rank {} on the same machine ({})",
                           ranks_[static_cast<size_t>(rank_)], ranks_[r], errno_text(errno));
      }
      Hello hello{.rank = rank_};
      std::memcpy(hello.nonce, nonce.data(), std::min(nonce.size(), sizeof(hello.nonce)));
      if (!is_same_user(socket) || !send_memory(socket, hello, memory_)) {
        return fmt::format("rank {} cannot hand memory to rank {}",
                           ranks_[static_cast<size_t>(rank_)], ranks_[r]);
      }
      peers_[r].socket = std::move(socket);
    }
    return "";
  }

  void accept_later() {
    for (size_t left = ranks_.size() - static_cast<size_t>(rank_) - 1; left > 0;) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.get() < 0) fail("accept: " + errno_text(errno));
      Hello hello;
      Descriptor memory = receive_memory(socket, hello, rendezvous_.options().join_timeout);
      const bool is_peer = memory.get() >= 0 && is_same_user(socket) && hello.rank > rank_ &&
                           hello.rank < static_cast<int>(ranks_.size()) &&
                           nonce_.text() == std::string_view(hello.nonce, sizeof(hello.nonce));
      if (!is_peer) continue;  // a stranger
      adopt(static_cast<size_t>(hello.rank), memory);
      if (!send_memory(socket, {.rank = rank_}, memory_)) fail("a peer closed its socket");
      peers_[static_cast<size_t>(hello.rank)].socket = std::move(socket);
      --left;
    }
  }

  void finish_earlier() {
    for (size_t r = 0; r < static_cast<size_t>(rank_); ++r) {
      Hello hello;
      const Descriptor memory =
          receive_memory(peers_[r].socket, hello, rendezvous_.options().join_timeout);
      if (memory.get() < 0) fail(fmt::format("rank {} sent no memory", ranks_[r]));
      adopt(r, memory);
    }
  }

  void adopt(size_t rank, const Descriptor& memory) {
    peers_[rank].memory = map_shm_memory(memory);
    if (peers_[rank].memory == nullptr) fail("memory cannot be mapped: " + errno_text(errno));
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw CommError(
        "shared memory of rank {}: found {}, expected every rank to take part; look at the first "
        "failing rank's message",
        ranks_[static_cast<size_t>(rank_)], what);
  }

  Rendezvous& rendezvous_;
  std::string prefix_;
  const std::vector<int>& ranks_;
  int rank_ = 0;
  Nonce nonce_;
  Descriptor memory_, listener_;
  std::vector<ShmLink::Peer> peers_;
};

std::unique_ptr<ShmLink> ShmLink::connect(Rendezvous& rendezvous, const std::string& name,
                                          const std::vector<int>& ranks, std::string& reason) {
  return ShmHandshake(rendezvous, name, ranks).connect(reason);
}

}  // namespace strata::comm
