// How far the downloads and the tokenizing are: on the terminal of rank 0, or now and then in its
// log. Owns: that line. Never: its text (report/live_line.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "strata/report/live_line.h"
#include "strata/train/run.h"

namespace strata::train {

class PreparationLine {
 public:
  PreparationLine(const Output& output, bool is_main);

  // `part`: of what is to be read, from 0 to 1.
  void show_rows(const std::string& subject, int64_t rows, double part);
  void show_download(const std::string& name, int64_t done, int64_t all);
  void clear();

  // show_rows() for who tells of rows by a function. Not beyond this object's life.
  std::function<void(const std::string&, int64_t, double)> row_progress();
  // Lines for people, which stay; empty where another rank says them. Not beyond this object's
  // life.
  std::function<void(const std::string&)> lines();

 private:
  const bool is_main_;
  const bool is_terminal_;
  std::function<void(std::string_view)> write_;
  report::LiveLine line_;
  report::PeriodicLine log_;
};

}  // namespace strata::train
