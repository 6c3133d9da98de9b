#include "strata/base/abandoned.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <system_error>

#include <fmt/format.h>

namespace strata {
namespace {

namespace fs = std::filesystem;

Descriptor claimed(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) file.close();
  return file;
}

// The number behind the prefix, if the name is nothing else.
std::optional<pid_t> process_in(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  pid_t process = 0;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + prefix.size(), end, process);
  const bool is_number = error == std::errc() && last == end && process > 0;
  return is_number ? std::optional(process) : std::nullopt;
}

bool is_alive(pid_t process) { return ::kill(process, 0) == 0 || errno != ESRCH; }

}  // namespace

WriteClaim::WriteClaim(const fs::path& temporary) : file_(claimed(temporary)) {}

std::vector<std::string> remove_abandoned(const fs::path& final_path) {
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
    const Descriptor claim = claimed(one);
    if (claim.get() < 0) continue;
    fs::remove_all(one, error);
    if (error) continue;
    removed.push_back(fmt::format("removed {}, which a killed process left", one.string()));
  }
  return removed;
}

}  // namespace strata
