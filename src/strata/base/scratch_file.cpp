#include "strata/base/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// -1 where the folder takes no file.
int open_nameless(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  // A file system without O_TMPFILE: a name that is gone at once.
  std::string name = (folder / "scratch-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

ScratchFile::ScratchFile(const fs::path& folder) : folder_(folder), file_(open_nameless(folder)) {
  if (file_.get() >= 0) return;
  std::error_code error;
  const fs::path other = fs::temp_directory_path(error);
  file_ = Descriptor(error ? -1 : open_nameless(other));
  folder_ = other;
  if (file_.get() >= 0) return;
  throw IoError("{}: found {}, expected a folder for temporary files; set HF_HOME or TMPDIR",
                folder.string(), errno_text(errno));
}

fs::path ScratchFile::path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

}  // namespace strata
