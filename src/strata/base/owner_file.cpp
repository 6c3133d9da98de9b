#include "strata/base/owner_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <ctime>
#include <system_error>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

std::string boot_of_this_machine() {
  std::string boot = read_file("/proc/sys/kernel/random/boot_id");
  while (!boot.empty() && boot.back() == '\n') boot.pop_back();
  return boot;
}

std::string own_pid_namespace() {
  std::error_code unknown;
  return fs::read_symlink("/proc/self/ns/pid", unknown).string();
}

struct ProcessFacts {
  char state = 'X';
  int64_t start = 0;
};

// Fields 3 and 22 of /proc/PID/stat; the second one is a name in brackets that may hold anything.
// Nothing where there is no such process, or only what is left of one that its parent has not asked
// for.
std::optional<ProcessFacts> facts_of(int64_t pid) {
  std::string stat;
  try {
    stat = read_file(fmt::format("/proc/{}/stat", pid));
  } catch (const IoError&) {
    return std::nullopt;
  }
  size_t at = stat.rfind(')');
  if (at == std::string::npos || at + 2 >= stat.size()) return std::nullopt;
  ProcessFacts facts{.state = stat[at + 2]};
  if (facts.state == 'Z' || facts.state == 'X') return std::nullopt;
  for (int field = 3; field <= 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), facts.start);
  return facts;
}

bool is_seen_from_here(const ProcessIdentity& process) {
  return !process.boot.empty() && process.boot == boot_of_this_machine() &&
         !process.pid_namespace.empty() && process.pid_namespace == own_pid_namespace();
}

// Nothing where it has just been removed.
std::optional<std::string> content_of(const fs::path& path) {
  try {
    return read_file(path);
  } catch (const IoError&) {
    if (std::error_code error; !fs::exists(path, error) && !error) return std::nullopt;
    return "";
  }
}

// Removes the file of a process that is gone, unless it is another's by now. Only processes of its
// own namespace can tell that it is gone, and the namespace's own file has locks whatever the
// folder lies on: one at a time looks and removes. False where even that file has none.
bool remove_left(const fs::path& path, const std::string& expected) {
  const Descriptor space(::open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
  if (space.get() < 0) return false;
  while (::flock(space.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return false;
  }
  if (content_of(path) == expected) ::unlink(path.c_str());
  return true;
}

}  // namespace

std::string host_name() {
  char name[256] = "unknown host";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

ProcessIdentity own_identity() {
  const std::time_t now = std::time(nullptr);
  char since[32];
  std::strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S UTC", std::gmtime(&now));
  return {.text = fmt::format("process {} on {} since {}", ::getpid(), host_name(), since),
          .boot = boot_of_this_machine(),
          .pid_namespace = own_pid_namespace(),
          .pid = ::getpid(),
          .start = facts_of(::getpid()).value_or(ProcessFacts()).start};
}

bool is_gone(const ProcessIdentity& process) {
  if (!is_seen_from_here(process)) return false;
  const std::optional<ProcessFacts> facts = facts_of(process.pid);
  return !facts || facts->start != process.start;
}

bool is_stopped(const ProcessIdentity& process) {
  if (!is_seen_from_here(process)) return false;
  const std::optional<ProcessFacts> facts = facts_of(process.pid);
  return facts && facts->start == process.start && (facts->state == 'T' || facts->state == 't');
}

std::string identity_text(const ProcessIdentity& process) {
  return Json{{"owner", process.text},
              {"boot", process.boot},
              {"pid_namespace", process.pid_namespace},
              {"pid", process.pid},
              {"start", process.start}}
      .dump();
}

// Nothing for what is not whole, as between another process's creation of it and its first write.
std::optional<ProcessIdentity> read_identity(const std::string& text, const std::string& name) {
  try {
    const Json json = parse_json(text, name);
    return ProcessIdentity{.text = json.at("owner").get<std::string>(),
                           .boot = json.at("boot").get<std::string>(),
                           .pid_namespace = json.at("pid_namespace").get<std::string>(),
                           .pid = json.at("pid").get<int64_t>(),
                           .start = json.at("start").get<int64_t>()};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool is_still_named(const Descriptor& file, const fs::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

std::optional<OwnerFile> OwnerFile::make(const fs::path& path, std::string& holder) {
  constexpr int kTries = 100;  // each but the last lost to another process that came or went
  for (int i = 0; i < kTries; ++i) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() >= 0) {
      const std::string text = identity_text(own_identity());
      if (write_fully(file.get(), std::as_bytes(std::span(text)), 0) != text.size()) {
        const int error = errno;
        ::unlink(path.c_str());
        throw IoError("{}: found {} when writing it, expected a writable folder with free space",
                      path.string(), errno_text(error));
      }
      ::fsync(file.get());  // for the other machines
      return OwnerFile(path, std::move(file));
    }
    if (errno != EEXIST) {
      throw IoError("{}: found {} when creating it, expected a writable folder", path.string(),
                    errno_text(errno));
    }
    const std::optional<std::string> found = content_of(path);
    if (!found) continue;
    const std::optional<ProcessIdentity> process = read_identity(*found, path.string());
    holder = process ? process->text : "a process that has not said its name";
    if (!process || !is_gone(*process) || !remove_left(path, *found)) return std::nullopt;
  }
  return std::nullopt;
}

bool OwnerFile::is_own() const { return file_.get() >= 0 && is_still_named(file_, path_); }

OwnerFile::~OwnerFile() {
  if (is_own()) ::unlink(path_.c_str());
}

}  // namespace strata
