// How far something is: one line at the bottom of a terminal, gone when it is over, or a line now
// and then in a log.
// Never: opens or chooses a stream.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "strata/report/progress.h"

namespace strata::report {

class LiveLine {
 public:
  // `columns`: of the terminal. `shows` false: nothing is ever written.
  LiveLine(Sink sink, std::function<int()> columns, bool shows);
  // Erases the line.
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // At most ten times a second; cut at the terminal's width.
  void show(std::string text);
  // Erases the line until the next show().
  void clear();

 private:
  Sink sink_;
  std::function<int()> columns_;
  const bool shows_;
  std::string shown_;
  std::chrono::steady_clock::time_point last_;
};

// The same where no terminal is: what lasts longer than a period is told of once in each.
class PeriodicLine {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  PeriodicLine(Sink sink, std::chrono::seconds period,
               Clock clock = std::chrono::steady_clock::now);

  void show(const std::string& text);
  // What was told of is over: the next period begins.
  void restart();

 private:
  Sink sink_;
  const std::chrono::seconds period_;
  Clock clock_;
  std::chrono::steady_clock::time_point last_;
};

// "downloading model.safetensors: 12.3 of 45.6 MB (26 %)". `all` 0: unknown.
std::string download_text(const std::string& name, int64_t done, int64_t all);

// "preparing train split of x: 12000 rows (34 %)"; empty for fewer rows than `least`, which are
// done at once.
std::string preparation_text(const std::string& subject, int64_t rows, double part,
                             int64_t least = 1000);

}  // namespace strata::report
