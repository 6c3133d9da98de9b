// Where the ranks of a run meet: a key-value store served by rank 0. Owns: the store's connection.
// Never: data of collectives.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/status_page.h"
#include "strata/comm/group.h"

namespace c10d {
class Store;
}

namespace strata::comm {

struct RendezvousOptions {
  int rank = 0;
  int world_size = 1;
  std::string address = "127.0.0.1";
  int port = 29500;
  // On rank 0: an open socket bound to the port, which the store takes over; negative: none.
  int listen_descriptor = -1;
  // How long any collective waits for its peers.
  std::chrono::seconds timeout{1800};
  // How long a rank waits for the others to appear; a rank that died before is noticed after this.
  std::chrono::seconds join_timeout{300};
  // How often the run has been started again; keeps what an earlier attempt left in a store that
  // outlives it (torchrun's) apart. By default what the launcher says.
  int attempt = attempt_of_launcher();
  // Ranks of one machine use shared memory; false: TCP for them too.
  bool shared_memory = true;
  // Where this rank's parameters are: collectives over tensors of a GPU go through NCCL, or through
  // host memory where ranks share one.
  c10::Device device = at::kCPU;
  // Is told what this rank waits for; null: nobody is. Must outlive all groups.
  Status* status = nullptr;
  // Is told, in a line for people, which ranks are missing while this one waits for them to appear,
  // for the first time after `patience`, and once why ranks of one machine go through TCP, although
  // they need not; null: nobody is.
  std::function<void(const std::string&)> say = nullptr;
  std::chrono::milliseconds patience{10'000};

  static int attempt_of_launcher();
};

// A group that is not used as most are.
struct GroupUse {
  // False: its waits are not told to the launcher (those of a thread in the background, while the
  // rank waits elsewhere).
  bool is_watched = true;
  // How long its collectives wait for their peers, once it is connected; nothing: as all do.
  std::optional<std::chrono::seconds> timeout = {};
};

class Rendezvous {
 public:
  // Collective. World size 1 opens nothing. Throws what call_roll throws (roll_call.h).
  explicit Rendezvous(const RendezvousOptions& options);
  ~Rendezvous();

  const RendezvousOptions& options() const { return options_; }
  c10d::Store& store();  // Requires: world_size > 1.
  // While this lives, closes connections to machines that have gone silent (silence_watch.h).
  void watch_connections();

  // Collective. Throws ConfigError on every rank that differs from rank 0, naming both, and on
  // rank 0 when any rank differs, so that all end alike before the first collective (I8).
  // `lines`: what the value stands for, of which the first line that differs is named; what stands
  // after "  # " in a line may differ.
  void require_same(const std::string& what, const std::string& value,
                    const std::string& lines = "");

  // The group of `ranks` (all of them by default), each of which must call this. Collective.
  // Through shared memory where all of them can (shm_group.h), else through TCP, of which `say` is
  // told where they are on one machine.
  // A collective that fails closes the group on its rank: the others' fail within seconds, and so
  // does everything after it on all of them. Of GPUs' tensors (NCCL) within seconds where the ranks
  // of the group share memory, else after the time-out.
  std::unique_ptr<Group> make_group(const std::string& name, std::vector<int> ranks = {},
                                    const GroupUse& use = {});

 private:
  // The store ends with rank 0, which therefore leaves last.
  void await_readers(const std::string& what);
  void tell_of_tcp(const std::string& reason);

  RendezvousOptions options_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata::comm
