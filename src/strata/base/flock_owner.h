// Who holds a lock (flock) of a file, by the list that the kernel of this machine keeps. Never:
// locks, waits, or asks another machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace strata {

struct FlockOwner {
  int64_t pid = 0;
  std::string name;         // of its program
  bool is_stopped = false;  // a signal (SIGSTOP, Ctrl-Z) or a debugger holds it

  // For people: "process 12 (python3), which a signal has stopped,".
  std::string text() const;
};

// Nothing where nobody holds it, or only somebody whom this machine or container does not see.
std::optional<FlockOwner> flock_owner(const std::filesystem::path& file);

}  // namespace strata
