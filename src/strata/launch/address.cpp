#include "strata/launch/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::launch {
namespace {

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

// "127.1" is 127.0.0.1; empty for a name.
std::string numeric_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* raw = nullptr;
  if (host.empty() || ::getaddrinfo(host.c_str(), nullptr, &hints, &raw) != 0) return "";
  const Addresses found(raw, ::freeaddrinfo);
  return text_of(found->ai_addr);
}

// RFC 6761, and the names that /etc/hosts of the common distributions has for loopback addresses.
bool is_name_of_loopback(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name.ends_with('.')) name.pop_back();
  constexpr std::array kNames = {"localhost",  "localhost.localdomain", "localhost4",
                                 "localhost6", "ip6-localhost",         "ip6-loopback"};
  return std::ranges::find(kNames, name) != kNames.end() || name.ends_with(".localhost");
}

}  // namespace

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
  for (const addrinfo* each = wanted.get(); each != nullptr; each = each->ai_next) {
    if (is_loopback(text_of(each->ai_addr))) return true;
  }
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

bool means_each_machine_itself(const std::string& host) {
  const std::string address = numeric_address(host);
  return address.empty() ? is_name_of_loopback(host) : is_loopback(address);
}

bool is_for_listening_only(const std::string& host) {
  const std::string address = numeric_address(host);
  return address == "0.0.0.0" || address == "::";
}

}  // namespace strata::launch
