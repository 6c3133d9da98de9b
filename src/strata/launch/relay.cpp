// Pipes, pseudo terminals and lines.
#include "strata/launch/relay.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::launch {
namespace {

// A line longer than this is passed on in pieces.
constexpr size_t kLongestLine = 1 << 16;
// What a pipe takes at once when poll() says that it takes something (PIPE_BUF).
constexpr size_t kPiece = 4096;

bool takes_output(int stream) {
  pollfd target{stream, POLLOUT, 0};
  return ::poll(&target, 1, 0) > 0;
}

// Erases the bar that may stand there.
std::string line_start(int stream) {
  const char* term = std::getenv("TERM");
  const bool has_bar = ::isatty(stream) == 1 && term != nullptr && std::string_view(term) != "dumb";
  return has_bar ? "\r\x1b[K" : "";
}

}  // namespace

bool write_all(int target, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(target, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {  // whoever opened the stream made it so
      pollfd waits{target, POLLOUT, 0};
      ::poll(&waits, 1, -1);
      continue;
    }
    if (written <= 0) return false;  // the reader is gone; the ranks go on
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

void write_lines(int target, std::string_view text) {
  write_all(target, line_start(target) + std::string(text));
}

std::string shown_text(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  line = line.substr(line.rfind('\r') + 1);  // npos + 1 is 0
  std::string shown;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      shown += line[i];
    } else if (i + 1 < line.size() && line[i + 1] == '[') {
      for (i += 2; i < line.size() && !std::isalpha(static_cast<unsigned char>(line[i]));) ++i;
    }
  }
  return shown;
}

Channel open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw IoError("pipe: found {}, expected a pipe for a rank's output", errno_text(errno));
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Channel open_terminal(int terminal) {
  char name[64];
  Channel channel{Descriptor(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)), Descriptor()};
  if (channel.ours.get() < 0 || ::grantpt(channel.ours.get()) != 0 ||
      ::unlockpt(channel.ours.get()) != 0 ||
      ::ptsname_r(channel.ours.get(), name, sizeof(name)) != 0) {
    return open_pipe();
  }
  channel.theirs = Descriptor(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (channel.theirs.get() < 0) return open_pipe();
  termios plain{};
  ::tcgetattr(channel.theirs.get(), &plain);
  ::cfmakeraw(&plain);
  ::tcsetattr(channel.theirs.get(), TCSANOW, &plain);
  winsize size{};
  if (::ioctl(terminal, TIOCGWINSZ, &size) == 0) ::ioctl(channel.ours.get(), TIOCSWINSZ, &size);
  return channel;
}

Relay::Relay(Descriptor source, RelayTarget target)
    : source_(std::move(source)), target_(std::move(target)) {
  ::fcntl(source_.get(), F_SETFL, ::fcntl(source_.get(), F_GETFL) | O_NONBLOCK);
  is_terminal_ = ::isatty(source_.get()) == 1;
}

pollfd Relay::awaited() const {
  if (!outgoing_.empty()) return {target_.stream, POLLOUT, 0};
  return {source_.get(), POLLIN, 0};
}

// The rank sees the window that the person sees.
void Relay::follow_size() {
  winsize seen{}, told{};
  if (!is_terminal_ || ::ioctl(target_.stream, TIOCGWINSZ, &seen) != 0 ||
      ::ioctl(source_.get(), TIOCGWINSZ, &told) != 0) {
    return;
  }
  if (seen.ws_col == told.ws_col && seen.ws_row == told.ws_row) return;
  ::ioctl(source_.get(), TIOCSWINSZ, &seen);
}

Relay::Read Relay::read_some() {
  if (source_.get() < 0) return Read::kEnd;
  char buffer[kPiece];
  const ssize_t size = ::read(source_.get(), buffer, sizeof(buffer));
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Read::kNothing;
  if (size > 0) {
    follow_size();
    take({buffer, static_cast<size_t>(size)});
    return Read::kSome;
  }
  // The end; a terminal says it by EIO.
  if (!pending_.empty()) take_line(std::exchange(pending_, {}));
  if (!drawn_.empty()) log_lines("\n");
  source_ = Descriptor();
  return Read::kEnd;
}

void Relay::take(std::string_view bytes) {
  if (target_.prefix.empty()) {
    if (target_.stream >= 0) outgoing_ += bytes;
    is_between_lines_ = bytes.ends_with('\n');
    if (target_.log >= 0) log_lines(bytes);
    return put_notice();
  }
  pending_ += bytes;
  size_t start = 0;
  for (size_t end; (end = pending_.find('\n', start)) != std::string::npos; start = end + 1) {
    take_line(std::string_view(pending_).substr(start, end - start));
  }
  pending_.erase(0, start);
  if (pending_.size() > kLongestLine) {
    take_line(pending_);
    pending_.clear();
  }
}

void Relay::take_line(std::string_view line) {
  if (target_.stream >= 0) {
    outgoing_ += line_start(target_.stream) + target_.prefix;
    outgoing_ += line;
    outgoing_ += '\n';
  }
  if (target_.log >= 0) write_log(shown_text(line) + "\n");
  put_notice();
}

void Relay::log_lines(std::string_view bytes) {
  drawn_ += bytes;
  size_t start = 0;
  for (size_t end; (end = drawn_.find('\n', start)) != std::string::npos; start = end + 1) {
    write_log(shown_text(std::string_view(drawn_).substr(start, end - start)) + "\n");
  }
  drawn_.erase(0, start);
  // A bar that is drawn for hours is one line: what was drawn over will not be shown.
  if (drawn_.size() <= kLongestLine) return;
  const size_t redrawn = drawn_.rfind('\r', drawn_.size() - 2);
  if (redrawn != std::string::npos) {
    drawn_.erase(0, redrawn);
    return;
  }
  write_log(drawn_ + "\n");
  drawn_.clear();
}

// A disk without room costs lines of the log, and no rank; whoever watches is told once.
void Relay::write_log(const std::string& text) {
  if (write_all(target_.log, text) || has_told_of_log_) return;
  const std::string reason = errno_text(errno);
  has_told_of_log_ = true;
  if (target_.stream < 0) return;
  notice_ = fmt::format(
      "warning: {}: found {} when writing to it, expected room for every line; from here on some "
      "are missing in it\n",
      target_.log_name, reason);
}

void Relay::put_notice() {
  if (notice_.empty() || !is_between_lines_ || target_.stream < 0) return;
  outgoing_ += line_start(target_.stream) + std::exchange(notice_, {});
}

// True when all is written.
bool Relay::flush(bool waits) {
  if (waits) {
    write_all(target_.stream, std::exchange(outgoing_, {}));
    return true;
  }
  while (!outgoing_.empty()) {
    if (!takes_output(target_.stream)) return false;
    const ssize_t written =
        ::write(target_.stream, outgoing_.data(), std::min(outgoing_.size(), kPiece));
    if (written < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (written <= 0) {  // the reader is gone; the ranks go on
      target_.stream = -1;
      outgoing_.clear();
      return true;
    }
    outgoing_.erase(0, static_cast<size_t>(written));
  }
  return true;
}

bool Relay::relay() {
  while (flush(/*waits=*/false)) {
    switch (read_some()) {
      case Read::kSome:
        continue;
      case Read::kNothing:
        return true;
      case Read::kEnd:
        flush(/*waits=*/false);
        return !outgoing_.empty();
    }
  }
  return true;
}

void Relay::drain() {
  while (read_some() == Read::kSome) flush(/*waits=*/true);
  flush(/*waits=*/true);
}

void Relay::close() {
  drain();
  if (!pending_.empty()) take_line(std::exchange(pending_, {}));
  if (!drawn_.empty()) log_lines("\n");
  is_between_lines_ = true;  // nothing of the rank follows
  put_notice();
  flush(/*waits=*/true);
  source_ = Descriptor();
}

}  // namespace strata::launch
