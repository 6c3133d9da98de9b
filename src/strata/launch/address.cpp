#include "strata/launch/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::launch {

void require_known_host(const std::string& setting, const std::string& host) {
  if (host.empty()) return;  // this machine
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &raw);
  if (raw != nullptr) ::freeaddrinfo(raw);
  if (error != 0) {
    throw ConfigError(
        "{}: found \"{}\", which has no address ({}), expected the name or address of machine 0",
        setting, host, error == EAI_SYSTEM ? errno_text(errno) : ::gai_strerror(error));
  }
}

Addresses addresses_of(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return Addresses(found, [](addrinfo* list) {
    if (list != nullptr) ::freeaddrinfo(list);
  });
}

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&ip)) {
      ::inet_ntop(AF_INET, reinterpret_cast<const char*>(&ip) + 12, text, sizeof(text));
    } else {
      ::inet_ntop(AF_INET6, &ip, text, sizeof(text));
    }
  }
  return text;
}

bool is_address_of_this_machine(const std::string& host) {
  const Addresses wanted = addresses_of(host, 0);
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> own(raw, ::freeifaddrs);
  for (const addrinfo* each = wanted.get(); each != nullptr; each = each->ai_next) {
    const std::string text = text_of(each->ai_addr);
    for (const ifaddrs* have = own.get(); have != nullptr; have = have->ifa_next) {
      if (have->ifa_addr != nullptr && text_of(have->ifa_addr) == text) return true;
    }
  }
  return false;
}

}  // namespace strata::launch
