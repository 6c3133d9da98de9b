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

bool is_address_of_this_machine(const std::string& host);

}  // namespace strata::launch
