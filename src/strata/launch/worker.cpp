// fork, exec and pipes.
#include "strata/launch/worker.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>

#include "strata/base/error.h"
#include "strata/base/file.h"

extern char** environ;

namespace strata::launch {
namespace {

std::string descriptor_text(int descriptor) {
  return descriptor >= 0 ? std::to_string(descriptor) : std::string();
}

std::vector<std::string> environment_of(const LaunchPlan& plan, int local_rank,
                                        const WatchedRank& watched) {
  std::vector<std::pair<std::string, std::string>> own = plan.environment;
  own.emplace_back("RANK", std::to_string(plan.first_rank + local_rank));
  own.emplace_back("LOCAL_RANK", std::to_string(local_rank));
  own.emplace_back(kStatusVariable, descriptor_text(watched.status_descriptor()));
  own.emplace_back(kStackVariable, descriptor_text(watched.stack_descriptor()));
  own.emplace_back("TORCHELASTIC_RESTART_COUNT", std::to_string(plan.attempt));
  const bool serves = plan.port && plan.first_rank + local_rank == 0;
  own.emplace_back(kListenVariable, descriptor_text(serves ? plan.port->socket.get() : -1));
  std::set<std::string, std::less<>> replaced;
  std::vector<std::string> result;
  for (const auto& [name, value] : own) {
    replaced.insert(name);
    result.push_back(name + "=" + value);
  }
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    if (!replaced.contains(text.substr(0, text.find('=')))) result.emplace_back(text);
  }
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct ChildSetup {
  char** arguments;
  char** environment;
  int in, out, err;
  int failure;  // write end: receives errno when exec fails
  pid_t parent;
  std::span<const int> kept = {};  // descriptors that stay open
  const cpu_set_t* cores = nullptr;
  bool holds_requests = false;  // to save and to stop, until the rank asks for them
};

// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_worker(const ChildSetup& setup) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != setup.parent) ::_exit(1);  // it died before the request
  sigset_t blocked;
  ::sigemptyset(&blocked);
  if (setup.holds_requests) {
    ::sigaddset(&blocked, SIGUSR1);
    ::sigaddset(&blocked, SIGUSR2);
  }
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
  // As a background process group it may still write to a terminal that forbids this (tostop).
  ::signal(SIGTTOU, SIG_IGN);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  for (int descriptor : setup.kept) ::fcntl(descriptor, F_SETFD, 0);
  // Not worth a failure: the rank then runs where the system puts it.
  if (setup.cores != nullptr) ::sched_setaffinity(0, sizeof(*setup.cores), setup.cores);
  if (::dup2(setup.in, 0) >= 0 && ::dup2(setup.out, 1) >= 0 && ::dup2(setup.err, 2) >= 0) {
    ::execvpe(setup.arguments[0], setup.arguments, setup.environment);
  }
  const int error_number = errno;
  [[maybe_unused]] ssize_t ignored = ::write(setup.failure, &error_number, sizeof(error_number));
  ::_exit(127);
}

// The pipe closes at exec; before that it delivers why there was none.
void require_started(const Descriptor& failure, pid_t pid, const std::string& program) {
  int error_number = 0;
  ssize_t size;
  do {
    size = ::read(failure.get(), &error_number, sizeof(error_number));
  } while (size < 0 && errno == EINTR);
  if (size != sizeof(error_number)) return;
  ::waitpid(pid, nullptr, 0);
  throw IoError("{}: found {}, expected a program to start", program, errno_text(error_number));
}

// What an earlier attempt wrote is kept: it says why there is another.
Descriptor open_log(const std::filesystem::path& path, int attempt) {
  const int start = attempt == 0 ? O_TRUNC : 0;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | start | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) {
    throw IoError("{}: found {}, expected a log file to write", path.string(), errno_text(errno));
  }
  if (attempt > 0) write_all(file, fmt::format("--- restart {} ---\n", attempt));
  return Descriptor(file);
}

cpu_set_t set_of(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cores) CPU_SET(cpu, &set);
  return set;
}

// What stays open in the rank.
std::vector<int> descriptors_for(const LaunchPlan& plan, const Worker& worker) {
  std::vector<int> kept = {worker.watched->status_descriptor(), worker.watched->stack_descriptor()};
  if (plan.port && worker.rank == 0) kept.push_back(plan.port->socket.get());
  return kept;
}

// The rank's ends of what its output goes through; descriptors that others own where there are
// none.
struct Outputs {
  Channel out, err;
  int out_target = -1, err_target = -1;
};

// The channel of a rank whose stream is passed on by this process.
Channel open_channel(const Worker& worker, int stream) {
  return worker.rank == 0 && ::isatty(stream) == 1 ? open_terminal(stream) : open_pipe();
}

RelayTarget relay_target(const Worker& worker, int stream) {
  return {.stream = stream,
          .prefix = worker.rank == 0 ? "" : fmt::format("[rank {}] ", worker.rank),
          .log = worker.log.get(),
          .log_name = worker.log_file.string()};
}

// Rank 0 is always shown; of the others with a log folder what `tee` says.
Outputs connect_outputs(const LaunchPlan& plan, int local_rank, const Streams& streams,
                        Worker& worker) {
  Outputs outputs;
  if (plan.log_dir.empty() && worker.rank == 0) {
    outputs.out_target = streams.out;
    outputs.err_target = streams.err;
    return outputs;
  }
  int shown = kTeeBoth;
  if (!plan.log_dir.empty()) {
    worker.log_file = plan.log_dir / fmt::format("rank_{}.log", worker.rank);
    worker.log = open_log(worker.log_file, plan.attempt);
    const auto index = static_cast<size_t>(local_rank);
    if (worker.rank != 0) shown = index < plan.tee.size() ? plan.tee[index] : 0;
  }
  worker.shows_errors = (shown & kTeeErrors) != 0;
  outputs.out_target = outputs.err_target = worker.log.get();
  if (shown & kTeeOutput) {
    outputs.out = open_channel(worker, streams.out);
    outputs.out_target = outputs.out.theirs.get();
    worker.out = Relay(std::move(outputs.out.ours), relay_target(worker, streams.out));
  }
  if (!worker.shows_errors) return outputs;
  const bool shares_terminal =
      worker.rank == 0 && ::isatty(streams.out) == 1 && ::isatty(streams.err) == 1;
  if (shares_terminal) {  // what is written in turn is shown in turn
    outputs.err_target = outputs.out_target;
    return outputs;
  }
  outputs.err = open_channel(worker, streams.err);
  outputs.err_target = outputs.err.theirs.get();
  worker.err = Relay(std::move(outputs.err.ours), relay_target(worker, streams.err));
  return outputs;
}

}  // namespace

Worker start_worker(const LaunchPlan& plan, int local_rank, const Streams& streams) {
  Worker worker;
  worker.rank = plan.first_rank + local_rank;
  worker.watched = std::make_unique<WatchedRank>(worker.rank);
  std::vector<std::string> arguments = plan.command;
  std::vector<std::string> environment = environment_of(plan, local_rank, *worker.watched);
  std::vector<char*> argument_pointers = pointers_to(arguments);
  std::vector<char*> environment_pointers = pointers_to(environment);

  Descriptor input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Channel failure = open_pipe();
  const Outputs outputs = connect_outputs(plan, local_rank, streams, worker);
  ChildSetup setup{
      argument_pointers.data(), environment_pointers.data(), input.get(), outputs.out_target,
      outputs.err_target,       failure.theirs.get(),        ::getpid()};
  const std::vector<int> kept = descriptors_for(plan, worker);
  setup.kept = kept;
  setup.holds_requests = plan.runs_recipe;
  cpu_set_t cores;
  if (!plan.cores.empty()) {
    cores = set_of(plan.cores[static_cast<size_t>(local_rank)]);
    setup.cores = &cores;
  }
  worker.pid = ::fork();
  if (worker.pid == 0) become_worker(setup);
  if (worker.pid < 0) {
    throw IoError("rank {}: found {}, expected a new process", worker.rank, errno_text(errno));
  }
  ::setpgid(worker.pid, worker.pid);  // also here, so that it holds whoever runs first
  worker.is_running = true;
  failure.theirs = Descriptor();
  require_started(failure.ours, worker.pid, plan.command.front());
  return worker;
}

}  // namespace strata::launch
