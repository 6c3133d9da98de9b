// Runs a probe in processes that are forked from one which has loaded libtorch already: to load it
// takes longer than a small model. Reads orders from standard input, a JSON object a line:
// {"request": file, "output": file, "stdout": file, "stderr": file}; answers each with the exit
// status, of a signal its number below 0.
// Never: starts a thread, which a fork would lose.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <string>

#include "leave.h"
#include "strata/base/json.h"

namespace strata {

// The exit status of the probe that reads the first file and writes the second.
using Probing = std::function<int(const std::string& request, const std::string& output)>;

[[noreturn]] inline void become_probe(const Json& order, const Probing& run) {
  constexpr int kNotStarted = 125;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const auto& [key, descriptor] :
       {std::pair{"stdout", STDOUT_FILENO}, {"stderr", STDERR_FILENO}}) {
    const int file = ::open(order.at(key).get<std::string>().c_str(),
                            O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(kNotStarted);
  }
  leave(run(order.at("request"), order.at("output")));
}

inline int serve_probes(const Probing& run) {
  for (std::string line; std::getline(std::cin, line);) {
    const Json order = Json::parse(line);
    const pid_t process = ::fork();
    if (process == 0) become_probe(order, run);
    int status = 0;
    if (process < 0 || ::waitpid(process, &status, 0) != process) return 1;
    std::printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace strata
