// Collectives over TCP through c10d's Gloo backend. Owns: the backend and its sockets.
#pragma once

#include "strata/comm/group.h"
#include "strata/comm/rendezvous.h"

namespace strata::comm {

// Connects all ranks of the store. Collective. Throws CommError when a rank does not arrive in
// time. `name` keeps the keys of several groups apart. `ranks` are the store's ranks that belong to
// the group, in group order; this process must be one of them. `timeout`: of a collective; nothing:
// the rendezvous'.
std::unique_ptr<Group> make_gloo_group(Rendezvous& rendezvous, const std::string& name,
                                       const std::vector<int>& ranks,
                                       std::optional<std::chrono::seconds> timeout = {});

}  // namespace strata::comm
