// What carries a rank's output to the launcher, and from there to the launcher's own streams and to
// a log file. Owns: prefixes, the terminal of a rank whose output is also logged. Never: waits for
// a slow reader while a rank runs, or decides which rank is shown where (worker.h).
#pragma once

#include <poll.h>

#include <string>
#include <string_view>

#include "strata/base/descriptor.h"

namespace strata::launch {

// Stops silently when the reader is gone. Returns whether all was written; errno says why not.
bool write_all(int target, std::string_view text);

// The same for whole lines. On a terminal they replace rank 0's progress bar, which is drawn again
// after its next step.
void write_lines(int target, std::string_view text);

// What a line that was drawn over again ("\r", "ESC [ K") shows in the end, without colours.
std::string shown_text(std::string_view line);

// The two ends of what carries output: ours is read, theirs is the rank's.
struct Channel {
  Descriptor ours, theirs;
};
// Throws IoError when the system gives none.
Channel open_pipe();
// A terminal as large as `terminal` is, which passes bytes on unchanged; a pipe where the system
// has none to give.
Channel open_terminal(int terminal);

struct RelayTarget {
  int stream = -1;            // the caller's; negative: not shown
  std::string prefix;         // of every line there; empty: bytes pass as they come, lines or not
  int log = -1;               // the caller's: takes whole lines, as shown_text; negative: none
  std::string log_name = {};  // for a message
};

// Passes on what a channel delivers. Threads: one.
class Relay {
 public:
  Relay() = default;
  // `source`: our end of a channel.
  Relay(Descriptor source, RelayTarget target);

  // What to wait for before relay() has something to do: the source, or the stream's reader when
  // that one is behind. Descriptor negative: nothing.
  pollfd awaited() const;
  // Reads what is there and writes what the stream takes without waiting. False at the end.
  bool relay();
  // The same to the last byte that is there, waiting for the reader.
  void drain();
  // drain(), then the last line even if it has no end.
  void close();

 private:
  enum class Read { kSome, kNothing, kEnd };
  Read read_some();
  void take(std::string_view bytes);
  void take_line(std::string_view line);
  void log_lines(std::string_view bytes);
  void write_log(const std::string& text);
  void put_notice();
  bool flush(bool waits);
  void follow_size();

  Descriptor source_;
  RelayTarget target_;
  bool is_terminal_ = false;
  std::string pending_;   // of a line that has no end yet
  std::string drawn_;     // the same for the log, where bytes pass as they come
  std::string outgoing_;  // not yet taken by the stream
  bool has_told_of_log_ = false;
  std::string notice_;            // a line of ours, for the next place between two of the rank's
  bool is_between_lines_ = true;  // what the stream has been given
};

}  // namespace strata::launch
