#include "strata/launch/json_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include "strata/base/file.h"
#include "strata/launch/address.h"

namespace strata::launch {
namespace {

constexpr size_t kLongestMessage = 1 << 16;
constexpr int kLongestSilence_s = 15;

// A machine that loses power closes no connection: the system asks it now and then.
void notice_silence(int socket) {
  const auto set = [&](int level, int name, int value) {
    ::setsockopt(socket, level, name, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kLongestSilence_s / 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kLongestSilence_s / 3);
  set(IPPROTO_TCP, TCP_KEEPCNT, 2);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kLongestSilence_s * 1000);
}

}  // namespace

JsonLink::JsonLink(Descriptor socket, std::string address)
    : socket_(std::move(socket)), address_(std::move(address)) {
  notice_silence(socket_.get());
}

void JsonLink::send(const Json& message) {
  const std::string line = message.dump() + "\n";
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t size = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return;
    rest.remove_prefix(static_cast<size_t>(size));
  }
}

std::vector<Json> JsonLink::receive() {
  char buffer[4096];
  ssize_t size;
  while ((size = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
    pending_.append(buffer, static_cast<size_t>(size));
    if (pending_.size() > kLongestMessage) break;  // no launcher
  }
  const bool waits = size < 0 && (errno == EAGAIN || errno == EINTR);
  if (!waits) socket_ = Descriptor();
  std::vector<Json> messages;
  for (size_t end; (end = pending_.find('\n')) != std::string::npos;) {
    const Json message = Json::parse(pending_.substr(0, end), nullptr, /*exceptions=*/false);
    pending_.erase(0, end + 1);
    if (message.is_object()) messages.push_back(message);
  }
  return messages;
}

std::optional<JsonLink> connect_to(const std::string& host, int port, std::string& reason) {
  const Addresses found = addresses_of(host, port);
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    Descriptor socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.get() >= 0 && ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0) {
      return JsonLink(std::move(socket), text_of(each->ai_addr));
    }
    reason = errno_text(errno);
  }
  return std::nullopt;
}

Accepted accept_from(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  for (;;) {
    Descriptor socket(
        ::accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC));
    if (socket.get() >= 0) {
      return {JsonLink(std::move(socket), text_of(reinterpret_cast<const sockaddr*>(&address)))};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    const bool has_gone = errno == EINTR || errno == ECONNABORTED || errno == EPROTO;
    if (!has_gone) return {.link = std::nullopt, .has_room = false};
  }
}

}  // namespace strata::launch
