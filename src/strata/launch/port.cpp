// bind and listen.
#include "strata/launch/port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::launch {
namespace {

// In network byte order at the same place for both families.
int port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return address.ss_family == AF_INET
             ? ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port)
             : 0;
}

int bound_port(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return port_of(address);
}

void allow_reuse(int socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

// Bound for both families; negative with errno otherwise.
Descriptor bind_both(int number) {
  Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return socket;
  allow_reuse(socket.get());
  const int off = 0;
  ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<uint16_t>(number));
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Descriptor();
  }
  return socket;
}

Descriptor bind_ipv4(int number) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) throw IoError("socket: found {}, expected a TCP socket", errno_text(errno));
  allow_reuse(socket.get());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(number));
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Descriptor();
  }
  return socket;
}

}  // namespace

std::optional<ReservedPort> reserve_port(int number, bool listens) {
  Descriptor socket = bind_both(number);
  // Without IPv6, which containers often lack.
  if (socket.get() < 0 && errno != EADDRINUSE) socket = bind_ipv4(number);
  if (socket.get() < 0) return std::nullopt;
  // Two sockets may be bound to a port as long as neither listens.
  if (listens && ::listen(socket.get(), SOMAXCONN) != 0) return std::nullopt;
  const int found = bound_port(socket.get());
  if (found == 0) return std::nullopt;
  return ReservedPort{std::move(socket), found};
}

bool is_bound_to(int socket, int number) { return number != 0 && bound_port(socket) == number; }

}  // namespace strata::launch
