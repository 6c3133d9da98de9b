// Where the launchers of several machines meet. One serves: machine 0 where the machines have
// numbers (rdzv_backend static), else the one whose machine has the address, which numbers the
// others as they come (c10d). It tells all when to start, and passes on that ranks of one machine
// failed, so that all machines stop and start again together. Owns: the connections between
// launchers. Never: the ranks' own store, which is rank 0's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/json.h"
#include "strata/launch/json_link.h"
#include "strata/launch/port.h"

namespace strata::launch {

struct MeetingOptions {
  std::string address;
  int port = 29500;
  int num_machines = 1;
  // What must be equal on all machines; compared when they meet.
  std::string settings;
  std::chrono::seconds join_timeout{600};
  // Why no other machine's launcher can come, with what to do; said early. Empty: they can.
  std::string only_here = {};
  // In place of join_timeout until all have met once.
  std::optional<std::chrono::seconds> first_join_timeout = {};
  // Empty: this machine serves when the address is its own and the port is free.
  std::optional<bool> is_host;
  // This machine's number; empty: the host gives it.
  std::optional<int> machine_rank = {};
  // When this launcher started; the host's holds for all, so that they agree on what the run saved.
  std::string launch_time = {};
  // Told now and then what is waited for; may be empty.
  std::function<void(const std::string&)> say = {};
};

// What one machine needs to know for one start of all ranks.
struct Round {
  int attempt = 0;
  int machine_rank = 0;
  int port = 0;                               // where rank 0 listens
  std::optional<ReservedPort> reserved = {};  // on its machine
  std::string launch_time;
};

// Another machine's launcher.
struct LauncherLink {
  JsonLink wire;
  std::string name;  // for messages: "machine 1 (10.0.0.2)"
  int machine_rank = 0;
  bool has_ended = false;  // well: its closing is no failure
  bool wants_round = false;
  // Of a round that began, or the host: whoever else reaches the port can end nothing.
  bool is_member = false;
  int attempt = 0;  // that it wants to begin, and since when its run goes
  std::string launch_time = {};
  std::chrono::steady_clock::time_point came = std::chrono::steady_clock::now();
};

// Threads: one.
class Meeting {
 public:
  // Throws ConfigError when the address is another machine's and this one is told to serve.
  explicit Meeting(const MeetingOptions& options);
  ~Meeting();

  // Waits until all machines are there; attempt counts from 0. A launcher that comes to a run that
  // others have begun, as host or not, joins it: the round has their number of attempts and their
  // launch time. Throws CommError when they do not come in time, ConfigError when they do not fit
  // together.
  Round begin_round(int attempt);

  // To be polled while ranks run.
  std::vector<int> descriptors() const;
  // Why this machine's ranks must stop, when another machine's failed or it is gone.
  std::optional<std::string> news();
  // The exit code that came with it.
  int failure_code() const { return failure_code_; }
  void tell_failure(const std::string& what, bool is_final, int exit_code = 1);
  // This machine's ranks have ended well. The others may still fail: wait until is_done.
  void tell_end();
  // Those of all machines have.
  bool is_done() const { return is_done_; }
  // True when a failure is not to be followed by another round, as another machine said.
  bool is_over() const { return is_over_; }

 private:
  bool is_host() const { return listener_.get() >= 0; }
  bool accepts() const;
  void accept_links();
  void make_room();
  int num_joined() const;
  std::chrono::seconds join_timeout() const;
  std::string caution() const;  // for the end of a sentence; empty: none
  void check_end();
  std::string problem_with(const LauncherLink& link, const Json& message);
  void say_whom_it_waits_for(const std::string& state);
  void connect_to_host();
  void add_link(JsonLink wire, const std::string& name);
  void greet(LauncherLink& link, const Json& message);
  Round host_round(int attempt);
  // Of the host: until a launcher of each other machine wants to begin.
  void gather_machines();
  // The latest that one of them is at, whose launch time counts, too: a host that starts again,
  // alone, comes to a run that the others have begun.
  int attempt_of_guests(int attempt);
  // Numbers the machines where they have none yet.
  void tell_start(const Round& round);
  Round guest_round(int attempt);
  void handle(LauncherLink& link, const Json& message);
  void handle_on_host(LauncherLink& link, const Json& message);
  void handle_on_guest(LauncherLink& link, const Json& message);
  void note_failure(const LauncherLink& link, const Json& message);
  void lose(LauncherLink& link);
  void send_all(const Json& message, const LauncherLink* except = nullptr);

  MeetingOptions options_;
  Descriptor listener_;  // of the host
  std::vector<std::unique_ptr<LauncherLink>> links_;
  std::optional<std::string> failure_;
  std::optional<Round> next_;  // a guest's, once it was told
  int failure_code_ = 1;
  bool is_over_ = false;
  bool is_gathering_ = false;  // of the host: it waits for all to begin a round
  bool have_met_ = false;      // all, once
  bool has_ended_ = false, is_done_ = false;
  int num_ended_ = 0;  // of the others, in this round
  std::chrono::steady_clock::time_point next_word_;
  std::chrono::steady_clock::time_point accepts_again_;  // from when on new links are looked for
};

}  // namespace strata::launch
