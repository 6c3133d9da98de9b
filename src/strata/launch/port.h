// TCP ports of this machine. Owns: keeping one from others until rank 0 serves it. Never: accepts
// a connection.
#pragma once

#include <optional>

#include "strata/base/descriptor.h"

namespace strata::launch {

// A bound socket of all addresses of this machine, IPv6 and IPv4 where it has both.
struct ReservedPort {
  Descriptor socket;
  int number = 0;
};

// `number` 0: any free one. `listens`: others may connect from now on and wait until the socket's
// heir accepts them; otherwise a program of this machine may still take the port by asking for it.
// None: the port is taken. Throws IoError when the system gives no socket.
std::optional<ReservedPort> reserve_port(int number, bool listens);

// True when `socket` is open and bound to the port.
bool is_bound_to(int socket, int number);

}  // namespace strata::launch
