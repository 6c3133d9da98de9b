// Asks the resolver.
#include "strata/launch/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::launch {
namespace {

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* ip = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(ip->sin_addr.s_addr) >> 24 == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

}  // namespace

void require_usable_address(const std::string& setting, const std::string& host, bool is_shared) {
  if (host.empty() && !is_shared) return;  // this machine
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &raw);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(raw, [](addrinfo* list) {
    if (list != nullptr) ::freeaddrinfo(list);
  });
  if (error != 0) {
    throw ConfigError(
        "{}: found \"{}\", which has no address ({}), expected the name or address of machine 0",
        setting, host, error == EAI_SYSTEM ? errno_text(errno) : ::gai_strerror(error));
  }
  if (!is_shared) return;
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    if (!is_loopback(entry->ai_addr)) return;
  }
  throw ConfigError(
      "{}: found \"{}\", an address that means every machine itself, expected one of machine 0 "
      "that "
      "the others reach; pass its address in the network instead of its name",
      setting, host);
}

}  // namespace strata::launch
