// What a run shows while it works: one live bar on a terminal, lines of the same content otherwise.
// Never: opens or chooses a stream; text leaves through the sink that the caller gives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "strata/base/json.h"

namespace strata::report {

using Sink = std::function<void(std::string_view)>;

// Where a run stands after one optimizer step.
struct StepReport {
  int64_t step = 0;  // steps done, from 1
  double loss = 0;
  double tokens_per_second = 0;
  double elapsed_seconds = 0;   // since the launcher started
  double peak_rss_mb = 0;       // of this rank
  double device_memory_mb = 0;  // 0: no accelerator
};

struct ProgressOptions {
  int64_t total_steps = 0;
  int64_t first_step = 0;    // steps that were done before this run (resume)
  bool is_terminal = false;  // false: no bar, lines that say where the run stands
  bool shows_steps = true;   // false: neither bar nor such lines, only log() and message() write
  bool unicode = true;       // false: the bar is drawn in ASCII
  // Columns of the terminal, asked before each drawing so that a resized window is followed.
  std::function<int()> columns = [] { return 80; };
};

// Columns of the terminal behind a file descriptor; 80 when it has no size.
int terminal_columns(int file_descriptor);

// Invariants: on a terminal the last line is the bar, or empty; every other text stands above it.
// Threads: one at a time.
class Progress {
 public:
  Progress(Sink sink, ProgressOptions options);
  ~Progress();  // finishes, so that an error message starts on a line of its own
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After every step. Redraws the bar at most ten times a second, and always for the last step.
  // Without a terminal: a line where none has come for a minute.
  void step(const StepReport& report);
  // A logged moment in Trainer's keys and order, above the bar or after a line of its step.
  void log(const Json& values);
  // A line (or several) of text above the bar.
  void message(std::string_view text);
  // Leaves the bar as it stands and ends its line. Nothing is drawn afterwards.
  void finish();

 private:
  bool has_bar() const { return options_.is_terminal && options_.shows_steps; }
  void draw();
  // Once a step.
  void tell_step();
  std::string bar_line(int columns) const;
  std::string step_line() const;
  std::string count_text() const;
  std::string memory_text() const;
  std::string speed_text() const;
  std::string seconds_left() const;

  Sink sink_;
  ProgressOptions options_;
  std::optional<StepReport> first_;
  std::optional<StepReport> last_;
  double drawn_at_ = -1;
  int64_t told_step_ = 0;
  double told_at_ = 0;
  bool bar_is_visible_ = false;
  bool finished_ = false;
};

// "1:02:03", "4:05": for the time left.
std::string clock_text(double seconds);

// "731", "5.4k", "1.2M": at most three digits before the unit.
std::string short_count(double value);

// "412 MB", "1.9 GB" from mebibytes.
std::string short_memory(double mebibytes);

}  // namespace strata::report
