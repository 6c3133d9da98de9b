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

}  // namespace

FileLock::FileLock(const std::filesystem::path& path, const WhileWaiting& while_waiting)
    : file_(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
  const int operation = while_waiting ? LOCK_EX | LOCK_NB : LOCK_EX;
  int code = file_.get() < 0 ? -1 : 0;
  if (code == 0) {
    while ((code = ::flock(file_.get(), operation)) != 0) {
      if (errno == EWOULDBLOCK) {
        while_waiting(note_in(file_.get()));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      } else if (errno != EINTR) {
        break;
      }
    }
  }
  if (code == 0) return;
  throw IoError("{}: found {} when locking it, expected a writable file system with locks",
                path.string(), errno_text(errno));
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
