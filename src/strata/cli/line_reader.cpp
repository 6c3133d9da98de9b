#include "strata/cli/line_reader.h"

#include <unistd.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::cli {

LineEnd LineReader::read(std::string& line) {
  size_t end;
  while ((end = buffer_.find('\n')) == std::string::npos) {
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

}  // namespace strata::cli
