#include "strata/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {

FileLock::FileLock(const std::filesystem::path& path)
    : file_(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
  int code = file_.get() < 0 ? -1 : 0;
  if (code == 0) {
    do {
      code = ::flock(file_.get(), LOCK_EX);
    } while (code != 0 && errno == EINTR);
  }
  if (code == 0) return;
  throw IoError("{}: found {} when locking it, expected a writable file system with locks",
                path.string(), errno_text(errno));
}

}  // namespace strata
