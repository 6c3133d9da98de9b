// DirectFile of file_queue.h, and what is asked of a file system before files rest on it.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/file_queue.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// Reserves the file's blocks. File systems without such a call get zeros written: a hole would make
// a full disk known only when it is filled.
int reserve(int descriptor, uint64_t size_bytes) {
  if (size_bytes == 0) return 0;
  const auto size = static_cast<off_t>(size_bytes);
  while (::fallocate(descriptor, 0, 0, size) != 0) {
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
    return ::posix_fallocate(descriptor, 0, size);
  }
  return 0;
}

}  // namespace

DirectFile::DirectFile(const fs::path& path, uint64_t size_bytes)
    : path_(path), size_bytes_(size_bytes) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  constexpr mode_t kOwnerOnly = 0600;
  file_ = Descriptor(::open(path.c_str(), kFlags, kOwnerOnly));
  if (file_.get() < 0) {
    throw IoError("{}: found {} when creating it, expected a new file; choose another folder",
                  path.string(), errno_text(errno));
  }
  const int error = reserve(file_.get(), size_bytes);
  if (error != 0) {
    ::unlink(path.c_str());
    throw IoError(
        "{}: found {} when reserving {} bytes ({} available), expected room for all of them; free "
        "space there or choose another folder",
        path.string(), errno_text(error), size_bytes, available_bytes(path.parent_path()));
  }
  // Some file systems refuse the flag at open, some at the first transfer; the former is common.
  Descriptor direct(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
  is_direct_ = direct.get() >= 0;
  if (is_direct_) file_ = std::move(direct);
}

DirectFile DirectFile::open_to_read(const fs::path& path, bool past_cache) {
  DirectFile file;
  file.path_ = path;
  constexpr int kFlags = O_RDONLY | O_CLOEXEC;
  if (past_cache) file.file_ = Descriptor(::open(path.c_str(), kFlags | O_DIRECT));
  file.is_direct_ = file.file_.get() >= 0;
  if (!file.is_direct_) file.file_ = Descriptor(::open(path.c_str(), kFlags));
  struct stat status {};
  if (file.file_.get() < 0 || ::fstat(file.file_.get(), &status) != 0) {
    throw IoError("{}: found {}, expected a readable file; check its permissions", path.string(),
                  errno_text(errno));
  }
  file.size_bytes_ = static_cast<uint64_t>(status.st_size);
  if (!file.is_direct_) ::posix_fadvise(file.file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  return file;
}

bool is_in_memory(const fs::path& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) {
    throw IoError("{}: found {} when asking for its file system, expected a folder; check the path",
                  path.string(), errno_text(errno));
  }
  return info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
}

}  // namespace strata
