#include "strata/comm/silence_watch.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "strata/comm/blocked_signals.h"
#include "strata/comm/tcp.h"

namespace strata::comm {
namespace {

// Looks within a limit.
constexpr int kLooks = 8;
// Questions without an answer, the first of which may be on its way.
constexpr uint32_t kAskedInVain = 2;

void set_option(const Descriptor& socket, int level, int name, int value) {
  ::setsockopt(socket.get(), level, name, &value, sizeof(value));
}

template <typename T>
bool get_option(const Descriptor& socket, int level, int name, T& value) {
  socklen_t size = sizeof(value);
  return ::getsockopt(socket.get(), level, name, &value, &size) == 0;
}

// While nothing is sent the system asks by itself: at the end of a third of the limit, and twice
// more.
void ask_when_idle(const Descriptor& socket, std::chrono::milliseconds limit) {
  const int seconds = std::max(static_cast<int>(limit.count() / 3000), 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 2);
}

}  // namespace

SilenceWatch::SilenceWatch(std::chrono::milliseconds limit) : limit_(limit) {
  const BlockedSignals blocked;
  look();
  thread_ = std::jthread([this](const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, stop, limit_ / kLooks, [&] { return stop.stop_requested(); })) {
      look();
    }
  });
}

void SilenceWatch::look() {
  const Clock::time_point now = Clock::now();
  std::vector<Descriptor> sockets;
  try {
    sockets = copies_of_tcp_sockets();
  } catch (const std::exception&) {
    return;  // no file more may be opened, or no memory: nothing is known of them until the next
             // look
  }
  for (const Descriptor& socket : sockets) look_at(socket, now);
  std::erase_if(seen_, [&](const auto& one) { return one.second.looked_at != now; });
  last_look_ = now;
}

void SilenceWatch::look_at(const Descriptor& socket, Clock::time_point now) {
  uint64_t number = 0;
  tcp_info info{};
  if (!get_option(socket, SOL_SOCKET, SO_COOKIE, number) ||
      !get_option(socket, IPPROTO_TCP, TCP_INFO, info)) {
    return;
  }
  const auto [entry, is_new] = seen_.try_emplace(number);
  Seen& seen = entry->second;
  seen.looked_at = now;
  if (is_new) ask_when_idle(socket, limit_);
  const bool is_answered = std::chrono::milliseconds(info.tcpi_last_ack_recv) <= now - last_look_;
  const bool is_asked = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  if (is_new || is_answered || !is_asked) {
    seen.since = now;
    seen.resent = info.tcpi_total_retrans;
    return;
  }
  // After a full window the system asks at intervals that grow beyond any limit; each answer sets
  // the count of probes back.
  const bool is_in_vain =
      info.tcpi_probes >= kAskedInVain || info.tcpi_total_retrans - seen.resent >= kAskedInVain;
  if (is_in_vain && now - seen.since >= limit_) ::shutdown(socket.get(), SHUT_RDWR);
}

}  // namespace strata::comm
