#include "strata/cli/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::cli {

void fill_standard_streams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const bool is_closed = ::fcntl(stream, F_GETFD) < 0 && errno == EBADF;
    if (is_closed && ::open("/dev/null", O_RDWR) != stream) return;
  }
}

void tell_text(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

void outlive_readers() { ::signal(SIGPIPE, SIG_IGN); }

void require_written_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw IoError("standard output: found {}, expected room for all of it; write to another place",
                errno != 0 ? errno_text(errno) : "a failed write");
}

}  // namespace strata::cli
