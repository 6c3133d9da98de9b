#include "strata/base/scratch_file.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
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

bool copy_bytes(int from, int to, uint64_t bytes) {
  off_t at = 0;
  while (static_cast<uint64_t>(at) < bytes) {
    const ssize_t copied = ::sendfile(to, from, &at, bytes - static_cast<uint64_t>(at));
    if (copied < 0 && errno == EINTR) continue;
    if (copied <= 0) return false;
  }
  return true;
}

bool share_file_system(int one, int other) {
  struct stat of_one = {}, of_other = {};
  return ::fstat(one, &of_one) == 0 && ::fstat(other, &of_other) == 0 &&
         of_one.st_dev == of_other.st_dev;
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

fs::path move_to_temporary_folder(int descriptor, uint64_t bytes) {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  const Descriptor other(error ? -1 : open_nameless(folder));
  if (other.get() < 0 || share_file_system(descriptor, other.get()) ||
      !copy_bytes(descriptor, other.get(), bytes) ||
      ::dup3(other.get(), descriptor, O_CLOEXEC) < 0) {
    return {};
  }
  return folder;
}

}  // namespace strata
