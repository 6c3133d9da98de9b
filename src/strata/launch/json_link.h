// A TCP connection between two launchers that carries one JSON object a line. Owns: the socket, and
// of a line what has come so far. Never: what the lines mean (meeting.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/json.h"

namespace strata::launch {

class JsonLink {
 public:
  // `address`: of the other side, as text.
  JsonLink(Descriptor socket, std::string address);

  int descriptor() const { return socket_.get(); }
  bool is_open() const { return socket_.get() >= 0; }
  const std::string& address() const { return address_; }

  // What does not go out is noticed when the link is read.
  void send(const Json& message);
  // Messages that have come; closes the link at its end.
  std::vector<Json> receive();

 private:
  Descriptor socket_;
  std::string address_;
  std::string pending_;  // received, not yet a whole line
};

// None: nobody listens there; `reason` says why where the system does.
std::optional<JsonLink> connect_to(const std::string& host, int port, std::string& reason);

// What came of looking at a listener that does not block.
struct Accepted {
  std::optional<JsonLink> link;  // none: nobody calls, or nobody can be answered
  // False: the system has no descriptor or memory for whoever calls, who is still waiting there.
  bool has_room = true;
};
Accepted accept_from(int listener);

}  // namespace strata::launch
