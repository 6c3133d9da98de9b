#include "strata/data/files/seen_files.h"

#include <sys/stat.h>

#include "strata/base/error.h"

namespace strata::data {

SeenFiles::State SeenFiles::look_at(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {.size = static_cast<int64_t>(status.st_size),
          .seconds = static_cast<int64_t>(status.st_mtim.tv_sec),
          .nanoseconds = static_cast<int64_t>(status.st_mtim.tv_nsec)};
}

SeenFiles::SeenFiles(std::span<const std::vector<std::filesystem::path>> lists) {
  for (const auto& files : lists) {
    for (const std::filesystem::path& file : files) files_[file.string()] = look_at(file.string());
  }
}

void SeenFiles::require_unchanged() const {
  for (const auto& [path, state] : files_) {
    const State now = look_at(path);
    if (now == state) continue;
    throw IoError(
        "{}: found {} while its rows were read, expected a file that nobody writes to; start again "
        "when it is complete",
        path,
        now.size < 0             ? "it gone"
        : now.size == state.size ? "it written to"
                                 : fmt::format("{} bytes become {}", state.size, now.size));
  }
}

}  // namespace strata::data
