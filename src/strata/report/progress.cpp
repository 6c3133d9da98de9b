#include "strata/report/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "strata/base/visible_text.h"
#include "strata/report/log_line.h"

namespace strata::report {
namespace {

constexpr double kRedrawSeconds = 0.1;
// The longest silence of a log, as where logging_strategy is no.
constexpr double kSilentSeconds = 60;
constexpr int kLongestBar = 40;
constexpr int kShortestBar = 6;
constexpr std::string_view kClearLine = "\r\x1b[K";

// A bar of `width` columns, filled from the left by `fraction` of it.
std::string draw_bar(int width, double fraction, bool unicode) {
  const int halves = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * width * 2));
  const int full = halves / 2;
  const bool half = halves % 2 != 0;
  std::string bar;
  for (int i = 0; i < width; ++i) {
    if (i < full) {
      bar += unicode ? "━" : "=";
    } else if (i == full && half) {
      bar += unicode ? "╸" : ">";
    } else {
      bar += unicode ? "┄" : "-";
    }
  }
  return bar;
}

}  // namespace

std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(std::max(0.0, std::round(seconds)));
  const int64_t hours = total / 3600, minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

std::string short_count(double value) {
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return value >= 9.95 || unit == 0 ? fmt::format("{:.0f}{}", value, kUnits[unit])
                                    : fmt::format("{:.1f}{}", value, kUnits[unit]);
}

std::string short_memory(double mebibytes) {
  return mebibytes < 1000 ? fmt::format("{:.0f} MB", mebibytes)
                          : fmt::format("{:.1f} GB", mebibytes / 1024);
}

int terminal_columns(int file_descriptor) {
  winsize size{};
  if (ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return 80;
}

Progress::Progress(Sink sink, ProgressOptions options)
    : sink_(std::move(sink)), options_(std::move(options)) {}

Progress::~Progress() { finish(); }

void Progress::step(const StepReport& report) {
  if (!first_) {
    first_ = report;
    told_at_ = report.elapsed_seconds;
  }
  last_ = report;
  const double now = report.elapsed_seconds;
  if (!has_bar()) {
    if (now - told_at_ >= kSilentSeconds) tell_step();
    return;
  }
  const bool is_last = report.step >= options_.total_steps;
  if (!finished_ && (drawn_at_ < 0 || is_last || now - drawn_at_ >= kRedrawSeconds)) {
    drawn_at_ = now;
    draw();
  }
}

void Progress::log(const Json& values) {
  tell_step();
  message(log_line(values));
}

void Progress::tell_step() {
  if (has_bar() || !options_.shows_steps || !last_ || told_step_ == last_->step) return;
  told_step_ = last_->step;
  told_at_ = last_->elapsed_seconds;
  message(step_line());
}

void Progress::message(std::string_view text) {
  while (text.ends_with('\n')) {
    text.remove_suffix(1);
  }
  std::string out;
  if (bar_is_visible_) {
    out += kClearLine;
  }
  out += visible(text);
  out += '\n';
  sink_(out);
  if (bar_is_visible_) {
    draw();
  }
}

void Progress::finish() {
  if (finished_) {
    return;
  }
  if (bar_is_visible_) {
    draw();
    sink_("\n");
    bar_is_visible_ = false;
  }
  finished_ = true;
}

void Progress::draw() {
  // The last column stays free: writing into it makes some terminals wrap.
  sink_(std::string(kClearLine) + bar_line(options_.columns() - 1));
  bar_is_visible_ = true;
}

std::string Progress::seconds_left() const {
  const int64_t measured = last_->step - first_->step;
  const int64_t missing = options_.total_steps - last_->step;
  if (measured <= 0 || missing <= 0) {
    return {};
  }
  const double per_step = (last_->elapsed_seconds - first_->elapsed_seconds) / measured;
  return clock_text(per_step * missing) + " left";
}

std::string Progress::count_text() const {
  return fmt::format("{}/{}", last_->step, options_.total_steps);
}

std::string Progress::speed_text() const {
  return short_count(last_->tokens_per_second) + " tokens/s";
}

std::string Progress::memory_text() const {
  std::string memory = short_memory(last_->peak_rss_mb);
  if (last_->device_memory_mb > 0) {
    memory += " + " + short_memory(last_->device_memory_mb) + " on device";
  }
  return memory;
}

// "12/500  3.1k tokens/s  1:02 left  412 MB"; the loss stands in the logged line after it.
std::string Progress::step_line() const {
  std::string line = count_text();
  for (const std::string& detail : {speed_text(), seconds_left(), memory_text()}) {
    line += detail.empty() ? "" : "  " + detail;
  }
  return line;
}

std::string Progress::bar_line(int columns) const {
  const double fraction =
      options_.total_steps > 0 ? static_cast<double>(last_->step) / options_.total_steps : 0;
  const std::string count = count_text();
  // In the order in which a narrow terminal may keep them.
  const std::array<std::string, 4> details = {"loss " + four_digits(last_->loss), seconds_left(),
                                              speed_text(), memory_text()};
  std::string tail;
  for (const std::string& detail : details) {
    const size_t used = count.size() + tail.size() + detail.size() + 3 + kShortestBar;
    if (used > static_cast<size_t>(std::max(0, columns))) {
      break;
    }
    tail += detail.empty() ? "" : "  " + detail;
  }
  const int room = columns - static_cast<int>(count.size() + tail.size()) - 1;
  if (room < kShortestBar) {
    return (count + tail).substr(0, static_cast<size_t>(std::max(0, columns)));
  }
  const int width = std::min(room, kLongestBar);
  return draw_bar(width, fraction, options_.unicode) + " " + count + tail;
}

}  // namespace strata::report
