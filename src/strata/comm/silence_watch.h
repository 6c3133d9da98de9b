// Notices a machine that went silent: one that loses power or its network closes no connection.
// Owns: a thread that looks at this process's TCP connections now and then. Never: the sockets
// themselves (Gloo's, the store's), nor what follows from a connection that ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>

#include "strata/base/descriptor.h"

namespace strata::comm {

// Every connected TCP socket of this process ends after about `limit` in which its peer's machine
// said nothing, although asked more than once. A process that does not read, since it is stopped or
// frozen, is another matter: its machine answers for it. (TCP_USER_TIMEOUT does not tell the two
// apart.)
// Threads: its own alone, from the constructor to the destructor.
class SilenceWatch {
 public:
  explicit SilenceWatch(std::chrono::milliseconds limit);

 private:
  using Clock = std::chrono::steady_clock;
  // What was seen of a connection.
  struct Seen {
    Clock::time_point since;  // the machine's last answer, or the first question after it
    uint32_t resent = 0;      // segments by then
    Clock::time_point looked_at;
  };

  void look();
  void look_at(const Descriptor& socket, Clock::time_point now);

  std::chrono::milliseconds limit_;
  std::map<uint64_t, Seen> seen_;  // by the kernel's number of the socket
  Clock::time_point last_look_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // ends first
};

}  // namespace strata::comm
