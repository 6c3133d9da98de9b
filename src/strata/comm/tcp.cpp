#include "strata/comm/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::comm {
namespace {

std::string text_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET6) {
    const auto& ip = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &ip.sin6_addr, text, sizeof(text));
  } else {
    const auto& ip = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &ip.sin_addr, text, sizeof(text));
  }
  return text;
}

// Connecting a UDP socket sends nothing; it asks the system for the route.
std::string source_of_route(const addrinfo& target) {
  const Descriptor socket(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (socket.get() < 0 || ::connect(socket.get(), target.ai_addr, target.ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return "";
  }
  return text_of(address);
}

bool is_connected_tcp(int socket) {
  int protocol = 0;
  socklen_t size = sizeof(protocol);
  if (::getsockopt(socket, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0) return false;
  sockaddr_storage peer{};
  size = sizeof(peer);
  return protocol == IPPROTO_TCP &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
}

std::vector<int> connected_tcp_sockets() {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (is_connected_tcp(descriptor)) sockets.push_back(descriptor);
  }
  return sockets;
}

}  // namespace

std::string local_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  const int error = ::getaddrinfo(host.c_str(), "9", &hints, &raw);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(raw, [](addrinfo* list) {
    if (list != nullptr) ::freeaddrinfo(list);
  });
  std::string reason = error == 0 ? "no route" : ::gai_strerror(error);
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    const std::string source = source_of_route(*entry);
    if (!source.empty()) return source;
    reason = errno_text(errno);
  }
  throw CommError("{}: found no way to it ({}), expected the address of rank 0's machine", host,
                  reason);
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

std::vector<Descriptor> copies_of_tcp_sockets() {
  std::vector<Descriptor> copies;
  for (const int socket : connected_tcp_sockets()) {
    Descriptor copy(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
    // Its number may be another file's by now.
    if (copy.get() >= 0 && is_connected_tcp(copy.get())) copies.push_back(std::move(copy));
  }
  return copies;
}

int64_t tcp_sent_bytes() {
  int64_t total = 0;
  for (const int socket : connected_tcp_sockets()) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    total += static_cast<int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  }
  return total;
}

}  // namespace strata::comm
