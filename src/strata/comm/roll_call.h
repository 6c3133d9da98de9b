// How the ranks of a run come together: all connect to the store of rank 0 and say who they are.
// Owns: the keys of that, the words about ranks that are missing. Never: what ranks do afterwards.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include "strata/comm/rendezvous.h"

namespace c10d {
class Store;
}

namespace strata::comm {

// Collective; returns the store: on rank 0 once every rank is there, on another one once rank 0 and
// it are. Requires: world_size > 1.
// While somebody is missing, rank 0 tells `options.say` who, and another rank that it finds no
// rank 0: after `options.patience`, then every minute.
// Throws CommError where ranks do not appear within the join timeout, ConfigError where a rank was
// started with another world size than rank 0, or with the number of another one.
c10::intrusive_ptr<c10d::Store> call_roll(const RendezvousOptions& options);

}  // namespace strata::comm
