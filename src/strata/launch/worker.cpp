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

// A line longer than this is passed on in pieces.
constexpr size_t kLongestLine = 1 << 16;

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw IoError("pipe: found {}, expected a pipe for a rank's output", errno_text(errno));
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

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
};

// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_worker(const ChildSetup& setup) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != setup.parent) ::_exit(1);  // it died before the request
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // As a background process group it may still write to a terminal that forbids this (tostop).
  ::signal(SIGTTOU, SIG_IGN);
  ::signal(SIGPIPE, SIG_DFL);
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

}  // namespace

void write_all(int target, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(target, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the reader is gone; the ranks go on
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void write_lines(int target, std::string_view text) {
  const char* term = std::getenv("TERM");
  const bool has_bar = ::isatty(target) == 1 && term != nullptr && std::string_view(term) != "dumb";
  write_all(target, (has_bar ? "\r\x1b[K" : "") + std::string(text));
}

LineRelay::LineRelay(Descriptor source, int target, std::string prefix)
    : source_(std::move(source)), target_(target), prefix_(std::move(prefix)) {
  ::fcntl(source_.get(), F_SETFL, ::fcntl(source_.get(), F_GETFL) | O_NONBLOCK);
}

void LineRelay::write_line(std::string_view line) {
  write_lines(target_, prefix_ + std::string(line) + "\n");
}

bool LineRelay::relay() {
  if (source_.get() < 0) return false;
  char buffer[4096];
  ssize_t size;
  while ((size = ::read(source_.get(), buffer, sizeof(buffer))) > 0) {
    pending_.append(buffer, static_cast<size_t>(size));
    size_t start = 0;
    for (size_t end; (end = pending_.find('\n', start)) != std::string::npos; start = end + 1) {
      write_line(std::string_view(pending_).substr(start, end - start));
    }
    pending_.erase(0, start);
    if (pending_.size() > kLongestLine) write_line(std::exchange(pending_, {}));
  }
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  close();
  return false;
}

void LineRelay::close() {
  if (!pending_.empty()) write_line(std::exchange(pending_, {}));
  source_ = Descriptor();
}

Worker start_worker(const LaunchPlan& plan, int local_rank, const Streams& streams) {
  Worker worker;
  worker.rank = plan.first_rank + local_rank;
  worker.watched = std::make_unique<WatchedRank>(worker.rank);
  std::vector<std::string> arguments = plan.command;
  std::vector<std::string> environment = environment_of(plan, local_rank, *worker.watched);
  std::vector<char*> argument_pointers = pointers_to(arguments);
  std::vector<char*> environment_pointers = pointers_to(environment);

  Descriptor input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe failure = make_pipe(), out, err;
  Descriptor log;
  ChildSetup setup{argument_pointers.data(),
                   environment_pointers.data(),
                   input.get(),
                   streams.out,
                   streams.err,
                   failure.write.get(),
                   ::getpid()};
  if (worker.rank != 0 && !plan.log_dir.empty()) {
    worker.log_file = plan.log_dir / fmt::format("rank_{}.log", worker.rank);
    log = open_log(worker.log_file, plan.attempt);
    setup.out = setup.err = log.get();
  } else if (worker.rank != 0) {
    out = make_pipe();
    err = make_pipe();
    setup.out = out.write.get();
    setup.err = err.write.get();
  }
  const std::vector<int> kept = descriptors_for(plan, worker);
  setup.kept = kept;
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
  failure.write = Descriptor();
  if (out.read.get() >= 0) {
    const std::string prefix = fmt::format("[rank {}] ", worker.rank);
    worker.out = LineRelay(std::move(out.read), streams.out, prefix);
    worker.err = LineRelay(std::move(err.read), streams.err, prefix);
  }
  require_started(failure.read, worker.pid, plan.command.front());
  return worker;
}

}  // namespace strata::launch
