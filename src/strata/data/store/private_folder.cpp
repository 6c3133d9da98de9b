#include "strata/data/store/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

namespace strata::data {

namespace fs = std::filesystem;

bool is_private(const fs::path& folder) {
  struct stat status = {};
  return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
}

std::string make_private(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fmt::format("{}: {}", folder.string(), std::strerror(errno));
  }
  if (is_private(folder)) return "";
  return fmt::format("{}: found what others can use, expected a folder of this user alone",
                     folder.string());
}

fs::path shared_scratch_path() {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) return {};
  return temporary / fmt::format("strata-tokens-{}", ::geteuid());
}

}  // namespace strata::data
