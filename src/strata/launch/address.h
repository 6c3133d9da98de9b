// Names and addresses of machines. Never: opens a connection.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>

namespace strata::launch {

// Throws ConfigError, which names `setting`, when the host's name has no address.
void require_known_host(const std::string& setting, const std::string& host);

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
// For TCP; empty: the resolver knows none.
Addresses addresses_of(const std::string& host, int port);

// An IPv4 address that is written as an IPv6 one becomes itself; empty: of another kind.
std::string text_of(const sockaddr* address);

// Loopback addresses are, also those that no interface lists (127.0.1.1).
bool is_address_of_this_machine(const std::string& host);

// True for what means this machine on every machine: 127.0.0.0/8, ::1, localhost. False for a name
// that is looked up, even where it is a loopback here: others may know it by another address.
bool means_each_machine_itself(const std::string& host);

// True for 0.0.0.0 and ::, at which one listens and which lead to no machine.
bool is_for_listening_only(const std::string& host);

}  // namespace strata::launch
