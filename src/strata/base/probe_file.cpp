#include "strata/base/probe_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".write-test-";
constexpr std::string_view kDrawn = "XXXXXX";  // letters and digits take their place

bool is_probe(std::string_view name) {
  return name.starts_with(kPrefix) && name.size() == kPrefix.size() + kDrawn.size() &&
         std::ranges::all_of(name.substr(kPrefix.size()),
                             [](unsigned char each) { return std::isalnum(each) != 0; });
}

}  // namespace

ProbeFile::ProbeFile(const fs::path& folder)
    : path_((folder / fmt::format("{}{}", kPrefix, kDrawn)).string()),
      file_(::mkostemp(path_.data(), O_CLOEXEC)) {
  if (file_.get() >= 0) return;
  throw IoError(
      "{}: found {} when creating a file in it, expected a writable folder; change its permissions "
      "or choose another",
      folder.string(), errno_text(errno));
}

ProbeFile::~ProbeFile() { ::unlink(path_.c_str()); }

void remove_left_probes(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_probe(entry.path().filename().string())) left.push_back(entry.path());
  }
  for (const fs::path& path : left) ::unlink(path.c_str());
}

}  // namespace strata
