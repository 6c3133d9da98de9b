#include "strata/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {

namespace {

std::string note_in(int file) {
  std::string note(FileLock::kNoteBytes, '\0');
  const ssize_t size = ::pread(file, note.data(), note.size(), 0);
  note.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return note;
}

[[noreturn]] void throw_unlocked(const std::filesystem::path& path) {
  throw IoError("{}: found {} when locking it, expected a writable file system with locks",
                path.string(), errno_text(errno));
}

}  // namespace

Descriptor FileLock::open_at(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666));
  if (file.get() < 0) throw_unlocked(path);
  return file;
}

FileLock::FileLock(Descriptor file, const std::filesystem::path& path,
                   const WhileWaiting& while_waiting)
    : file_(std::move(file)) {
  const int operation = while_waiting ? LOCK_EX | LOCK_NB : LOCK_EX;
  while (::flock(file_.get(), operation) != 0) {
    if (errno == EWOULDBLOCK) {
      if (!while_waiting(note_in(file_.get()))) {
        file_ = Descriptor();
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } else if (errno != EINTR) {
      throw_unlocked(path);
    }
  }
}

std::optional<FileLock> FileLock::wait_for(const std::filesystem::path& path,
                                           const WhileWaiting& while_waiting) {
  FileLock lock(open_at(path), path, while_waiting);
  if (lock.file_.get() < 0) return std::nullopt;
  return lock;
}

void FileLock::sync_note() const {
  // Whoever cannot read it takes this process for one that gives no sign.
  if (::fdatasync(file_.get()) != 0) errno = 0;
}

void FileLock::leave_note(std::string_view text) const {
  text = text.substr(0, kNoteBytes);
  // A disk without room for it costs the others the note alone.
  if (::pwrite(file_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      ::ftruncate(file_.get(), static_cast<off_t>(text.size())) != 0) {
    errno = 0;
  }
}

}  // namespace strata
