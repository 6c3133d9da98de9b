// One poll loop over signals and pipes.
#include "strata/launch/supervisor.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/phases.h"
#include "strata/launch/environment.h"
#include "strata/launch/rank_end.h"
#include "strata/launch/signal_queue.h"

namespace strata::launch {
namespace {

using Clock = std::chrono::steady_clock;

class Supervisor {
 public:
  Supervisor(const LaunchPlan& plan, const SupervisorOptions& options)
      : plan_(plan), options_(options) {}
  ~Supervisor() {
    // Only when starting failed half-way: run() leaves none.
    for (Worker& worker : workers_) {
      if (!worker.is_running) continue;
      ::kill(-worker.pid, SIGKILL);
      ::waitpid(worker.pid, nullptr, 0);
    }
  }

  RunEnd run() {
    if (!plan_.log_dir.empty()) require_writable_folder(plan_.log_dir);
    for (int local_rank = 0; local_rank < plan_.local_world_size; ++local_rank) {
      workers_.push_back(start_worker(plan_, local_rank, options_.streams));
    }
    while (is_any_running()) {
      wait_for_event();
      relay_output();
      handle_signals();
      reap();
      hear_of_other_machines();
      look_for_hang();
      keep_deadlines();
    }
    relay_output();
    for (Worker& worker : workers_) {
      worker.out.close();
      worker.err.close();
    }
    if (options_.meeting != nullptr && exit_code_ == 0 && interrupted_by_ == 0) {
      await_other_machines();
    }
    // What comes next must not stand after the bar and the terminal's "^C".
    if (interrupted_by_ != 0 && ::isatty(options_.streams.err)) {
      write_all(options_.streams.err, "\n");
    }
    return {final_exit_code(), interrupted_by_ != 0};
  }

 private:
  // A rank of this machine or of another, and not: another was told to stop.
  bool has_failed() const { return exit_code_ != 0 && !was_stopped_elsewhere_; }
  bool is_any_running() const {
    return std::ranges::any_of(workers_, [](const Worker& w) { return w.is_running; });
  }

  // Once all have ended: a failure's code, or what a request to stop came to.
  int final_exit_code() const {
    const auto has_ended_well = [](const Worker& worker) { return worker.wait_status == 0; };
    const bool is_complete = plan_.runs_recipe && std::ranges::all_of(workers_, has_ended_well);
    if (!has_failed() && all_stopped_or_done()) return kStoppedExitCode;
    if (is_complete && was_stopped_elsewhere_) return 0;
    if (exit_code_ == 0 && interrupted_by_ != 0 && !is_complete) return 128 + interrupted_by_;
    return exit_code_;
  }

  // At least one rank stopped on request and none ended otherwise than that or by finishing.
  bool all_stopped_or_done() const {
    const auto stopped = [this](const Worker& worker) { return has_ended_as_asked(worker); };
    return std::ranges::any_of(workers_, stopped) &&
           std::ranges::all_of(workers_, [&](const Worker& worker) {
             return worker.wait_status == 0 || stopped(worker);
           });
  }
  // Also a run that had no answer to the request yet, and one that missed a rank that had.
  bool has_ended_as_asked(const Worker& worker) const {
    const int status = worker.wait_status;
    return has_stopped(worker) || (ends_unbegun_run_ && status != 0) ||
           (has_passed_request_on_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
  }

  void wait_for_event(int longest_ms = -1) {
    std::vector<pollfd> sources = {{signals_.descriptor(), POLLIN, 0}};
    for (const Worker& worker : workers_) {
      for (const Relay* relay : {&worker.out, &worker.err}) {
        if (const pollfd awaited = relay->awaited(); awaited.fd >= 0) sources.push_back(awaited);
      }
    }
    if (options_.meeting != nullptr && !deadline_) {
      for (int source : options_.meeting->descriptors()) sources.push_back({source, POLLIN, 0});
    }
    int timeout_ms = watches() ? static_cast<int>(look_interval().count()) : longest_ms;
    if (deadline_) {
      const auto next = terminate_at_ ? std::min(*terminate_at_, *deadline_) : *deadline_;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
      // After the deadline all are killed; look again soon in case one started a process meanwhile.
      timeout_ms = static_cast<int>(std::max<int64_t>(left.count() + 1, 100));
    }
    ::poll(sources.data(), sources.size(), timeout_ms);
  }

  // A failure elsewhere ends this machine's ranks as one of their own does.
  void hear_of_other_machines() {
    if (options_.meeting == nullptr || deadline_) return;
    const auto failure = options_.meeting->news();
    if (!failure) return;
    failed_elsewhere_ = true;
    const int code = options_.meeting->failure_code();
    exit_code_ = code == kWrongSettings ? kWrongSettings : 1;
    write_lines(options_.streams.err,
                fmt::format("error: {}; stopping the ranks of this machine\n", *failure));
    if (options_.meeting->is_over() && code != kWrongSettings) {
      // Told to stop, perhaps to save and go on later: so may these.
      was_stopped_elsewhere_ = true;
      signal_all(SIGTERM);
      return let_save(options_.grace_after_term);
    }
    terminate_at_ = Clock::now() + options_.patience;
    stop_within(options_.grace);
  }
  void tell_other_machines(const std::string& what) const {
    if (options_.meeting == nullptr) return;
    const int code = interrupted_by_ != 0 ? 128 + interrupted_by_ : exit_code_;
    const bool is_final =
        interrupted_by_ != 0 || exit_code_ == kWrongSettings || exit_code_ == kStoppedExitCode;
    options_.meeting->tell_failure(what, is_final, code);
  }
  // This machine's ranks have ended well, or saved themselves. Those of others may still fail, and
  // then all start again.
  void await_other_machines() {
    options_.meeting->tell_end();
    deadline_.reset();
    const auto limit = Clock::now() + options_.wait_for_others;
    while (!options_.meeting->is_done() && interrupted_by_ == 0 && Clock::now() < limit) {
      wait_for_event(/*longest_ms=*/1000);
      handle_signals();
      hear_of_other_machines();
      if (failed_elsewhere_) return;
    }
  }

  bool watches() const { return plan_.hang_timeout.count() > 0 && !deadline_; }
  std::chrono::milliseconds look_interval() const {
    using std::chrono::milliseconds;
    return std::clamp(plan_.hang_timeout / 20, milliseconds(50), milliseconds(5000));
  }

  // The ranks that run and have taken their page.
  std::vector<Observation> observe_ranks() const {
    std::vector<Observation> ranks;
    for (const Worker& worker : workers_) {
      if (!worker.is_running) continue;
      StatusReading reading = worker.watched->read();
      if (reading.process <= 0) continue;
      const char state = state_of_process(reading.process);
      ranks.push_back({worker.rank, std::move(reading), state});
    }
    return ranks;
  }

  // A hang ends as a failure does, except that nobody is given time to end by itself.
  void look_for_hang() {
    if (!watches() || Clock::now() < next_look_) return;
    next_look_ = Clock::now() + look_interval();
    const std::vector<Observation> ranks = observe_ranks();
    const auto hang = describe_hang(ranks, plan_.hang_timeout);
    if (!hang) return tell_of_wait(ranks);
    exit_code_ = 1;
    tell_other_machines(*hang);
    write_lines(options_.streams.err,
                fmt::format("error: {}; {}; stopping all ranks\n", *hang, write_stacks()));
    signal_all(SIGTERM);
    stop_within(std::chrono::seconds(1));
  }

  // Before a hang ends the run, the person who waits for it may know better.
  void tell_of_wait(const std::vector<Observation>& ranks) {
    const auto word = wait_words_.next(ranks, plan_.hang_timeout, Clock::now());
    if (word) write_lines(options_.streams.err, fmt::format("warning: {}\n", *word));
  }

  // Says where they are.
  std::string write_stacks() {
    try {
      require_writable_folder(plan_.stack_dir);
      for (const Worker& worker : workers_) {
        if (!worker.is_running) continue;
        const StatusReading reading = worker.watched->read();
        write_file_atomically(plan_.stack_dir / fmt::format("rank_{}.stack", worker.rank),
                              fmt::format("rank {}, step {}, {}\n{}", worker.rank, reading.step,
                                          reading.phase, worker.watched->stacks(worker.pid)));
      }
    } catch (const Error& error) {
      return fmt::format("the ranks' stacks could not be written ({})", error.what());
    }
    return fmt::format("see the ranks' stacks in {}", (plan_.stack_dir / "rank_*.stack").string());
  }

  void relay_output() {
    for (Worker& worker : workers_) relay_output_of(worker);
  }
  static void relay_output_of(Worker& worker) {
    worker.out.relay();
    worker.err.relay();
  }
  static void drain_output_of(Worker& worker) {
    worker.out.drain();
    worker.err.drain();
  }

  void signal_all(int number) {
    for (const Worker& worker : workers_) {
      if (worker.is_running) ::kill(-worker.pid, number);
    }
  }

  // Who was given time to end by himself is told to when it is over, and killed when that is, too.
  void keep_deadlines() {
    if (terminate_at_ && Clock::now() >= *terminate_at_) {
      terminate_at_.reset();
      signal_all(SIGTERM);
    }
    if (deadline_ && Clock::now() >= *deadline_ && !grants_more_time()) signal_all(SIGKILL);
  }

  void stop_within(std::chrono::milliseconds grace) {
    const auto limit = Clock::now() + grace;
    if (!deadline_ || limit < *deadline_) deadline_ = limit;
    saving_since_.reset();
  }
  // The ranks end their step and save; `grace` is for those of which nobody knows what they do.
  void let_save(std::chrono::milliseconds grace) {
    if (saving_since_) return;  // told already: another signal takes no time away from them
    const bool is_first = !deadline_;
    stop_within(grace);
    if (is_first) saving_since_ = Clock::now();
  }

  // At the deadline: whether ranks that were told to stop still save, or work towards it. A state
  // may take minutes to write, and who needs the machine earlier kills by himself. Moves the
  // deadline then.
  bool grants_more_time() {
    if (!saving_since_) return false;
    const bool has_one_failed = std::ranges::any_of(workers_, [this](const Worker& worker) {
      return !worker.is_running && worker.wait_status != 0 && !has_ended_as_asked(worker);
    });
    const std::vector<Observation> ranks = observe_ranks();
    const bool has_limit = plan_.hang_timeout.count() > 0;
    if (has_one_failed || (has_limit && describe_hang(ranks, plan_.hang_timeout))) return false;
    // A step that does not end is a hang as well; how long a write takes is the disk's matter.
    const bool has_waited_long = has_limit && Clock::now() - *saving_since_ > plan_.hang_timeout;
    const bool is_busy = std::ranges::any_of(ranks, [&](const Observation& each) {
      const std::string& phase = each.reading.phase;
      if (each.state == 'T') return false;
      if (phase.starts_with(kSavingPhase) || phase == kResultPhase) return true;
      return !has_waited_long &&
             (phase == kTrainingPhase || phase == kEvaluatingPhase || phase == kAskingAgainPhase);
    });
    if (is_busy) deadline_ = Clock::now() + std::chrono::milliseconds(500);
    return is_busy;
  }

  // Ranks save together, and one that was told to stop before the first step ends without. What the
  // others may be in waits for it, and has nothing to save either.
  static bool has_saved(const Worker& worker) {
    return worker.watched->read().phase.starts_with(kSavingPhase);
  }
  void end_unbegun_run() {
    if (std::exchange(ends_unbegun_run_, true)) return;
    has_passed_request_on_ = true;
    signal_all(SIGUSR1);
    stop_within(options_.grace);
  }

  void handle_signals() {
    while (int number = signals_.next()) {
      if (number == SIGCHLD) continue;
      const bool is_second = number == SIGINT && std::exchange(has_interrupt_, true);
      signal_all(is_second ? SIGKILL : number);
      has_passed_request_on_ |= number == SIGUSR1 && plan_.runs_recipe;
      if (number == SIGUSR1 || number == SIGUSR2) continue;
      if (interrupted_by_ == 0) {
        interrupted_by_ = number;
        tell_other_machines(
            fmt::format("a machine: told to stop by signal {} ({})", number, ::strsignal(number)));
      }
      let_save(number == SIGINT ? options_.grace : options_.grace_after_term);
    }
  }

  // Collects the ranks that ended. Of several failures at once a killed one is the cause, then the
  // lowest rank.
  void reap() {
    const Worker* cause = nullptr;
    for (Worker& worker : workers_) {
      if (!worker.is_running || !has_ended(worker)) continue;
      if (worker.wait_status == 0) continue;
      if (has_ended_as_asked(worker)) {
        if (!deadline_) let_save(options_.grace_after_term);  // the others save too
        if (plan_.runs_recipe && !has_saved(worker)) end_unbegun_run();
        continue;
      }
      if (!cause || (WIFSIGNALED(worker.wait_status) && !WIFSIGNALED(cause->wait_status))) {
        cause = &worker;
      }
    }
    if (!cause || ends_unbegun_run_ || interrupted_by_ != 0) return;
    const int code = exit_code_of(cause->wait_status);
    if (failed_elsewhere_ && code == kWrongSettings) exit_code_ = code;  // it says so itself
    if (exit_code_ != 0) return;
    exit_code_ = code;
    report(*cause);
    tell_other_machines(
        fmt::format("rank {}: found ended ({}) on another machine, expected it to "
                    "train; see its message there",
                    cause->rank, end_of(*cause)));
    terminate_at_ = Clock::now() + options_.patience;
    stop_within(options_.grace);
  }

  static bool has_ended(Worker& worker) {
    siginfo_t info{};
    // The process stays a zombie until its group is gone, so that the number is still its own.
    if (::waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      return false;
    }
    ::kill(-worker.pid, SIGKILL);  // what it left behind
    ::waitpid(worker.pid, &worker.wait_status, 0);
    worker.is_running = false;
    drain_output_of(worker);  // its own message comes before ours
    return true;
  }

  void report(const Worker& worker) {
    // A single rank's own message says enough.
    if (plan_.world_size == 1 && !WIFSIGNALED(worker.wait_status)) return;
    std::string text = fmt::format("error: rank {}: {}", worker.rank, end_of(worker));
    if (is_any_running()) text += "; stopping the other ranks";
    text += '\n';
    text += tail_of_log(worker);
    write_lines(options_.streams.err, text);
  }

  const LaunchPlan& plan_;
  SupervisorOptions options_;
  SignalQueue signals_;
  std::vector<Worker> workers_;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> deadline_;
  std::optional<Clock::time_point> saving_since_;  // only ranks that may save are waited for
  Clock::time_point next_look_;
  WaitWords wait_words_;
  int interrupted_by_ = 0;              // the first signal that told this process to stop
  bool has_interrupt_ = false;          // a SIGINT was among them
  bool has_passed_request_on_ = false;  // SIGUSR1
  bool ends_unbegun_run_ = false;       // a rank was told to stop before the first step
  int exit_code_ = 0;
  bool failed_elsewhere_ = false;       // on another machine, which exit_code_ says
  bool was_stopped_elsewhere_ = false;  // it was no failure, but a request
};

}  // namespace

RunEnd run_workers(const LaunchPlan& plan, const SupervisorOptions& options) {
  return Supervisor(plan, options).run();
}

}  // namespace strata::launch
