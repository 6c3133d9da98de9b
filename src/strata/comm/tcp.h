// What collectives over TCP need of the operating system: the right local address, and this
// process's connections. Never: the sockets themselves (Gloo's, the store's).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"

namespace strata::comm {

// This machine's address on the route to `host`, where peers that reach `host` reach this machine
// too. Machine names are no help: they often mean the machine itself only. Throws CommError when
// the host is unknown or out of reach.
std::string local_address_towards(const std::string& host);

// True for addresses that mean every machine itself: 127.0.0.0/8 and ::1.
bool is_loopback(const std::string& address);

// The connected TCP sockets of this process, each under a descriptor of its own, so that another
// thread may close its. Threads: any.
std::vector<Descriptor> copies_of_tcp_sockets();

// What this process has handed over for its open TCP connections, as the kernel counts it: without
// headers and without what was sent twice. Zero where the kernel does not say (before Linux 4.19).
int64_t tcp_sent_bytes();

}  // namespace strata::comm
