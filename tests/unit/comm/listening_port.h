// A port for ranks that are threads of a test.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "strata/base/error.h"

namespace strata::comm {

struct ListeningPort {
  int descriptor;  // of rank 0, whose store takes it over
  int number;
};

// Bound before the ranks start: a number that is only free now may be taken by the time they do.
inline ListeningPort listening_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  if (::bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(descriptor, SOMAXCONN) != 0 ||
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw CommError("socket: found {}, expected a free port", std::strerror(errno));
  }
  return {descriptor, ntohs(address.sin_port)};
}

}  // namespace strata::comm
