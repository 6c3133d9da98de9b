// Runs training programs in processes that are forked from one which has loaded libtorch already: a
// run costs its steps then, and not the start of each rank, which takes longer. Reads orders from
// standard input, a JSON object a line: {"words": ["sft", ...], "ranks": 2, "folder": "where",
// "output": "file", "errors": "file"}; answers each with the number of ranks that failed. The ranks
// meet as torchrun's do.
// Never: starts a thread, which a fork would lose.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "leave.h"
#include "strata/base/json.h"
#include "strata/cli/command.h"
#include "strata/launch/plan.h"
#include "strata/launch/port.h"

namespace {

using strata::Json;
using strata::launch::ReservedPort;

constexpr int kNotStarted = 125;

void set_variable(const char* name, int value) {
  ::setenv(name, std::to_string(value).c_str(), /*overwrite=*/1);
}

void join_ranks(int rank, int ranks, const std::optional<ReservedPort>& port) {
  for (const char* name : {"RANK", "LOCAL_RANK"}) set_variable(name, rank);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set_variable(name, ranks);
  if (!port) return;
  ::setenv("MASTER_ADDR", "127.0.0.1", /*overwrite=*/1);
  set_variable("MASTER_PORT", port->number);
  if (rank == 0) set_variable(strata::launch::kListenVariable, port->socket.get());
}

int open_to_append(const std::string& file) {
  return ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

[[noreturn]] void become_rank(const Json& order, int rank, int ranks,
                              const std::optional<ReservedPort>& port) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int in = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int out = open_to_append(order.at("output")), error = open_to_append(order.at("errors"));
  if (::dup2(in, STDIN_FILENO) < 0 || ::dup2(out, STDOUT_FILENO) < 0 ||
      ::dup2(error, STDERR_FILENO) < 0 ||
      ::chdir(order.at("folder").get<std::string>().c_str()) != 0) {
    ::_exit(kNotStarted);
  }
  join_ranks(rank, ranks, port);
  std::vector<std::string> words = order.at("words").get<std::vector<std::string>>();
  words.insert(words.begin(), "strata");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  strata::leave(strata::cli::run(static_cast<int>(words.size()), arguments.data()));
}

int run_row(const Json& order) {
  const int ranks = order.at("ranks").get<int>();
  std::optional<ReservedPort> port;
  if (ranks > 1) port = strata::launch::reserve_port(/*number=*/0, /*listens=*/true);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) become_rank(order, rank, ranks, port);
    processes.push_back(process);
  }
  int num_failed = 0;
  for (const pid_t process : processes) {
    int status = 0;
    const bool is_done = process > 0 && ::waitpid(process, &status, 0) == process;
    num_failed += is_done && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
  }
  return num_failed;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const int num_failed = run_row(Json::parse(line));
    std::printf("%d\n", num_failed);
    std::fflush(stdout);
  }
}
