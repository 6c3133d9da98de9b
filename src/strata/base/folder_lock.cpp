#include "strata/base/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_held(const fs::path& folder, const std::string& owner,
                             const std::string& advice) {
  throw ConfigError(
      "output_dir: found that {} writes to {}, expected one run in a folder; wait for it or choose "
      "another folder{}",
      owner.empty() ? "another process" : owner, folder.string(), advice);
}

// Of the open file: its holder may have removed the name since.
std::string owner_in(const Descriptor& file) {
  char text[512];
  const ssize_t size = ::pread(file.get(), text, sizeof(text), 0);
  return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
}

enum class Held { kByUs, kByAnother, kByNobody };

// kByNobody: this file system has no locks.
Held lock(int descriptor, const FolderLock::Flock& flock) {
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Held::kByAnother;
    if (errno != EINTR) return Held::kByNobody;
  }
  return Held::kByUs;
}

}  // namespace

FolderLock::Flock FolderLock::system_flock() {
  return [](int descriptor, int operation) { return ::flock(descriptor, operation); };
}

FolderLock::FolderLock(const fs::path& folder, const Flock& flock) : path_(folder / ".lock") {
  while (true) {
    file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (file_.get() < 0) {
      throw IoError("{}: found {} when creating it, expected a writable folder", path_.string(),
                    errno_text(errno));
    }
    const Held held = owner_ ? Held::kByUs : lock(file_.get(), flock);
    if (held == Held::kByAnother) throw_held(folder, owner_in(file_), "");
    if (held == Held::kByNobody) own_by_name(folder);
    // The owner before us may have removed the name since we opened it.
    if (is_still_named(file_, path_)) break;
  }
  text_ = own_identity().text;
  if (::ftruncate(file_.get(), 0) != 0 ||
      write_fully(file_.get(), std::as_bytes(std::span(text_)), 0) != text_.size()) {
    const int error = errno;
    remove_own();
    throw IoError("{}: found {} when writing it, expected a writable folder with free space",
                  path_.string(), errno_text(error));
  }
  // Where several machines share the folder, the others are to read it while it is open here.
  ::fsync(file_.get());
}

void FolderLock::own_by_name(const fs::path& folder) {
  const fs::path path = folder / ".lock-owner";
  std::string holder;
  owner_ = OwnerFile::make(path, holder);
  if (owner_) return;
  throw_held(folder, holder,
             fmt::format("; if that process is gone, remove {} (this file system has no locks)",
                         path.string()));
}

void FolderLock::remove_own() {
  // By name the file is whoever's the owner's file is: its text alone is written anew.
  if (is_still_named(file_, path_) && (!owner_ || owner_->is_own())) ::unlink(path_.c_str());
}

FolderLock::~FolderLock() { remove_own(); }

}  // namespace strata
