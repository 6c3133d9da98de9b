// Where the rows go that a run logs: the terminal, metrics.jsonl, TensorBoard's events, and the
// history that trainer_state.json has. Owns: the order of these, and what becomes of rows while the
// disk is full. Never: decides what is in a row, nor when there is one.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/report/metrics_file.h"
#include "strata/report/progress.h"
#include "strata/report/tensorboard_file.h"

namespace strata::report {

// Invariants: every row is in the history. What was not opened is not written, as on all ranks but
// one, which log nothing; there nothing is said either.
// Memory: the history, a row of some hundred bytes a log, as trainer_state.json has it.
// Threads: one at a time.
class RunLog {
 public:
  // The history of the run that this one continues from.
  void go_on(std::vector<Json> history) { history_ = std::move(history); }
  // `resumed_step`: as MetricsFile takes it. Returns a warning where the file had lines that are no
  // rows, or nothing. Throws IoError.
  std::string open_metrics(const std::filesystem::path& file, std::optional<int64_t> resumed_step);
  // Requires: open_metrics(). Throws IoError.
  void open_events(const std::filesystem::path& folder);
  void open_progress(Sink sink, ProgressOptions options);

  // A line above the progress bar. Empty: none.
  void say(const std::string& line);
  // After every step.
  void show(const StepReport& step);
  // Adds a row of a moment after `step` steps. `extra` goes to metrics.jsonl and the events alone.
  // Rows that the disk has no room for are kept and written when it has; events then end. Both are
  // told of.
  void append(Json values, int64_t step, double epoch, const Json& extra);
  // When no more rows come: says how many of them the file lacks.
  void settle();
  // Once more, when the disk has taken something else after settle() told of missing rows. Says so
  // where the file has them now.
  void catch_up();
  // The bar stays as it is.
  void finish();

  // Without `extra`, each with "epoch" and "step".
  const std::vector<Json>& history() const { return history_; }
  // Those of the file and those that wait for room; the history where the file is gone. Requires:
  // open_metrics().
  std::vector<Json> rows() const;

 private:
  void append_to_metrics(const Json& row);
  // False while the disk has no room for them; `why` says so.
  bool write_kept(std::string& why);
  void append_to_events(const Json& row, int64_t step);

  std::vector<Json> history_;
  std::unique_ptr<Progress> progress_;
  std::filesystem::path metrics_path_;
  std::unique_ptr<MetricsFile> metrics_;
  std::deque<Json> unwritten_;
  std::unique_ptr<TensorboardFile> events_;
};

}  // namespace strata::report
