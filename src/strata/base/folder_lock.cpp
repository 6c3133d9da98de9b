#include "strata/base/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

std::string owner_text() {
  char host[256] = "unknown host";
  ::gethostname(host, sizeof(host) - 1);
  const std::time_t now = std::time(nullptr);
  char since[32];
  std::strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S UTC", std::gmtime(&now));
  return fmt::format("process {} on {} since {}", ::getpid(), host, since);
}

// The owner before us may have removed the name between our opening and our lock.
bool is_still_named(const Descriptor& file, const fs::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) : path_(folder / ".lock") {
  while (true) {
    file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (file_.get() < 0) {
      throw IoError("{}: found {} when creating it, expected a writable folder", path_.string(),
                    errno_text(errno));
    }
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return;  // no locks here
      throw ConfigError(
          "output_dir: found that {} writes to {}, expected one run in a folder; wait for it or "
          "choose another folder",
          read_file(path_), folder.string());
    }
    if (is_still_named(file_, path_)) break;
  }
  const std::string owner = owner_text();
  if (::ftruncate(file_.get(), 0) == 0) {
    write_fully(file_.get(), std::as_bytes(std::span(owner)), 0);  // for messages only
  }
}

FolderLock::~FolderLock() { ::unlink(path_.c_str()); }

}  // namespace strata
