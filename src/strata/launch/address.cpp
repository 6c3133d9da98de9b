// Asks the resolver.
#include "strata/launch/address.h"

#include <netdb.h>
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

}  // namespace strata::launch
