#include "strata/cli/line_reader.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/text/utf8.h"

namespace strata::cli {

// False: a signal ended the wait. One that came just before must not be lost, so SIGINT is held
// back between the look at the flag and the wait.
bool LineReader::wait_for_input() const {
  sigset_t held, before;
  sigemptyset(&held);
  sigaddset(&held, SIGINT);
  sigprocmask(SIG_BLOCK, &held, &before);
  bool ready = interrupted_ == nullptr || !*interrupted_;
  if (ready) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    ready = ::ppoll(&input, 1, nullptr, &before) >= 0 || errno != EINTR;
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return ready;
}

LineEnd LineReader::read(std::string& line) {
  size_t end;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    if (!wait_for_input()) {
      buffer_.clear();
      return LineEnd::kInterrupted;
    }
    char chunk[4096];
    const ssize_t count = ::read(STDIN_FILENO, chunk, sizeof(chunk));
    if (count < 0 && errno == EINTR) {
      buffer_.clear();
      return LineEnd::kInterrupted;
    }
    if (count < 0) throw IoError("standard input: {}", errno_text(errno));
    if (count == 0) {
      if (buffer_.empty()) return LineEnd::kEndOfInput;
      buffer_ += '\n';  // the last line has no end
      continue;
    }
    buffer_.append(chunk, static_cast<size_t>(count));
  }
  line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return LineEnd::kLine;
}

void require_utf8(std::string_view line, std::string_view where) {
  size_t invalid = 0;
  for (size_t i = 0; i < line.size();) {
    const size_t length = text::valid_char_length(line, i, invalid);
    if (length == 0) {
      throw FormatError(
          "{}: found a byte {:#04x} that is not UTF-8 after {} bytes, expected UTF-8 text; convert "
          "it first",
          where, static_cast<unsigned char>(line[i]), i);
    }
    i += length;
  }
}

}  // namespace strata::cli
