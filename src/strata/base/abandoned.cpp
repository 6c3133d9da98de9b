#include "strata/base/abandoned.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <system_error>

#include <fmt/format.h>

namespace strata {
namespace {

namespace fs = std::filesystem;

// Does not wait for a writer where the path is a pipe.
Descriptor claimed(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) file.close();
  return file;
}

constexpr pid_t kLargestProcess = 4194304;  // Linux' PID_MAX_LIMIT: a date is none

// The number of a process behind the prefix, as it is written, if the name is nothing else.
std::optional<pid_t> process_in(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  pid_t process = 0;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + prefix.size(), end, process);
  const bool is_process = error == std::errc() && last == end && process > 0 &&
                          process <= kLargestProcess &&
                          name.substr(prefix.size()) == std::to_string(process);
  return is_process ? std::optional(process) : std::nullopt;
}

bool is_alive(pid_t process) { return ::kill(process, 0) == 0 || errno != ESRCH; }

bool is_own(const Descriptor& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_uid == ::geteuid();
}

// Whether the path is `folder` or lies in it.
bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code of_path, of_folder;
  const fs::path relative = fs::weakly_canonical(path, of_path)
                                .lexically_relative(fs::weakly_canonical(folder, of_folder));
  if (of_path || of_folder) return true;  // who cannot tell leaves it alone
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

WriteClaim::WriteClaim(const fs::path& temporary) : file_(claimed(temporary)) {}

std::vector<std::string> remove_abandoned(const fs::path& final_path,
                                          std::span<const fs::path> in_use) {
  const fs::path path = final_path.has_filename() ? final_path : final_path.parent_path();
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string prefix = path.filename().string() + ".tmp-";
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const auto process = process_in(entry.path().filename().string(), prefix);
    if (process && !is_alive(*process)) found.push_back(entry.path());
  }
  std::vector<std::string> removed;
  for (const fs::path& one : found) {
    if (std::ranges::any_of(in_use, [&](const fs::path& path) { return lies_in(path, one); })) {
      continue;
    }
    const Descriptor claim = claimed(one);
    if (claim.get() < 0 || !is_own(claim)) continue;
    fs::remove_all(one, error);
    if (error) continue;
    removed.push_back(fmt::format("removed {}, which a killed process left", one.string()));
  }
  return removed;
}

}  // namespace strata
