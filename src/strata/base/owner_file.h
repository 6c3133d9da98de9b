// A lock for file systems that offer none: a file that names the process which made it. Owns: that
// file while it lives. Never: waits, or takes the file of a process that may be alive.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "strata/base/descriptor.h"

namespace strata {

std::string host_name();

// Who holds a folder.
struct ProcessIdentity {
  std::string text;           // for people: "process 12 on a-host since 2026-01-31 10:00:00 UTC"
  std::string boot;           // of the machine: the same in all its containers
  std::string pid_namespace;  // in which the number below is one process
  int64_t pid = 0;
  int64_t start = 0;  // ticks from boot to the process's start: tells it from a later namesake
};
ProcessIdentity own_identity();

// True where this machine can tell that the process is gone. Of one in another container, on
// another machine, or before the machine was started last, it cannot.
bool is_gone(const ProcessIdentity& process);

// True where this machine can tell that a signal (SIGSTOP, Ctrl-Z) or a debugger holds it.
bool is_stopped(const ProcessIdentity& process);

// A line of JSON, and what it says; nothing of a text that is not whole.
std::string identity_text(const ProcessIdentity& process);
std::optional<ProcessIdentity> read_identity(const std::string& text, const std::string& name);

// Exclusive creation (O_EXCL) is what every file system has. Invariants: of any number of processes
// one has the file; what a process leaves that was killed is taken over by the next one in its
// place. Threads: one.
class OwnerFile {
 public:
  // The file, or, when it is somebody else's, nothing and `holder` says whose.
  static std::optional<OwnerFile> make(const std::filesystem::path& path, std::string& holder);
  ~OwnerFile();
  // False when somebody took it away, and may have made one of his own.
  bool is_own() const;
  OwnerFile(OwnerFile&& other) noexcept = default;
  OwnerFile& operator=(OwnerFile&& other) noexcept = default;

 private:
  OwnerFile(std::filesystem::path path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  Descriptor file_;
};

// Whether `path` still names the open file: others may have removed or replaced it.
bool is_still_named(const Descriptor& file, const std::filesystem::path& path);

}  // namespace strata
