#include "strata/base/flock_owner.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <sstream>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

// Empty where this process may not read it, or the kernel has no such file.
std::string content_of(const std::string& path) {
  try {
    return read_file(path);
  } catch (const IoError&) {
    return "";
  }
}

}  // namespace

std::string FlockOwner::text() const {
  return fmt::format("process {} ({}){}", pid, name,
                     is_stopped ? ", which a signal has stopped," : "");
}

std::optional<FlockOwner> flock_owner(const std::filesystem::path& file) {
  struct stat facts = {};
  if (::stat(file.c_str(), &facts) != 0) return std::nullopt;
  const std::string place =
      fmt::format("{:02x}:{:02x}:{}", ::major(facts.st_dev), ::minor(facts.st_dev), facts.st_ino);
  // "1: FLOCK  ADVISORY  WRITE 1234 fe:01:5678 0 EOF"; who waits has "->" in the second place.
  std::istringstream lines(content_of("/proc/locks"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number;
    std::string kind;
    std::string manner;
    std::string mode;
    std::string found;
    FlockOwner owner;
    words >> number >> kind >> manner >> mode >> owner.pid >> found;
    if (kind != "FLOCK" || found != place || owner.pid <= 0) continue;
    const std::string stat = content_of(fmt::format("/proc/{}/stat", owner.pid));
    const size_t open = stat.find('(');
    const size_t close = stat.rfind(')');
    if (open == std::string::npos || close + 2 >= stat.size()) return std::nullopt;  // has ended
    owner.name = stat.substr(open + 1, close - open - 1);
    owner.is_stopped = stat[close + 2] == 'T' || stat[close + 2] == 't';
    return owner;
  }
  return std::nullopt;
}

}  // namespace strata
