#include "strata/launch/rank_end.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <vector>

#include "strata/launch/environment.h"

namespace strata::launch {
namespace {

constexpr size_t kTailLines = 10;

}  // namespace

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

bool has_stopped(const Worker& worker) {
  return WIFEXITED(worker.wait_status) && WEXITSTATUS(worker.wait_status) == kStoppedExitCode;
}

std::string end_of(const Worker& worker) {
  const int status = worker.wait_status;
  if (!WIFSIGNALED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  return fmt::format("killed by signal {} ({}){}", number, ::strsignal(number),
                     number == SIGKILL ? "; the system does this when memory runs out" : "");
}

std::string tail_of_log(const Worker& worker) {
  if (worker.log_file.empty() || worker.shows_errors) return "";
  std::ifstream file(worker.log_file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (lines.size() == kTailLines) lines.erase(lines.begin());
    lines.push_back(line);
  }
  std::string text = fmt::format("the end of {}:\n", worker.log_file.string());
  for (const std::string& line : lines) text += fmt::format("[rank {}] {}\n", worker.rank, line);
  return text;
}

}  // namespace strata::launch
