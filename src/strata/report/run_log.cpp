#include "strata/report/run_log.h"

#include <utility>

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"

namespace strata::report {

std::string RunLog::open_metrics(const std::filesystem::path& file,
                                 std::optional<int64_t> resumed_step) {
  metrics_ = std::make_unique<MetricsFile>(file, resumed_step);
  metrics_path_ = file;
  const size_t damaged = metrics_->num_damaged();
  if (damaged == 0) return "";
  return fmt::format(
      "warning: metrics.jsonl: found {} line{} that {} no row, expected one of every log; left "
      "out, trainer_state.json has what they said",
      damaged, damaged == 1 ? "" : "s", damaged == 1 ? "is" : "are");
}

void RunLog::open_events(const std::filesystem::path& folder) {
  events_ = std::make_unique<TensorboardFile>(folder);
}

void RunLog::open_progress(Sink sink, ProgressOptions options) {
  progress_ = std::make_unique<Progress>(std::move(sink), std::move(options));
}

void RunLog::say(const std::string& line) {
  if (progress_ && !line.empty()) progress_->message(line);
}

void RunLog::show(const StepReport& step) {
  if (progress_) progress_->step(step);
}

void RunLog::append(Json values, int64_t step, double epoch, const Json& extra) {
  values["epoch"] = epoch;
  if (progress_) progress_->log(values);
  values["step"] = step;
  history_.push_back(values);
  if (!metrics_) return;
  for (const auto& [key, value] : extra.items()) values[key] = value;
  append_to_metrics(values);
  if (events_) append_to_events(values, step);
}

void RunLog::append_to_events(const Json& row, int64_t step) {
  try {
    events_->append(row, step);
  } catch (const IoError& error) {
    // A picture of the run is not worth the run.
    say(fmt::format("warning: {}; no more of them are written, training goes on", error.what()));
    events_.reset();
  }
}

// A disk that is full for a while costs no more than a checkpoint does.
void RunLog::append_to_metrics(const Json& row) {
  unwritten_.push_back(row);
  std::string why;
  if (write_kept(why) || unwritten_.size() > 1) return;  // the row before told it
  say(fmt::format("warning: {}; training goes on, rows are kept until there is room", why));
}

bool RunLog::write_kept(std::string& why) {
  try {
    while (!unwritten_.empty()) {
      metrics_->append(unwritten_.front());
      unwritten_.pop_front();
    }
  } catch (const IoError& error) {
    why = error.what();
    return false;
  }
  return true;
}

void RunLog::settle() {
  std::string why;
  if (!metrics_ || write_kept(why)) return;
  say(
      fmt::format("warning: {}; {} row{} missing in it (what is saved of the run says the same in "
                  "trainer_state.json's log_history)",
                  why, unwritten_.size(), unwritten_.size() == 1 ? " is" : "s are"));
}

void RunLog::catch_up() {
  const size_t missing = unwritten_.size();
  std::string why;
  if (!metrics_ || missing == 0 || !write_kept(why)) return;
  say(fmt::format("metrics.jsonl has the {} now that {} missing", counted(missing, "row"),
                  missing == 1 ? "was" : "were"));
}

void RunLog::finish() {
  if (progress_) progress_->finish();
}

std::vector<Json> RunLog::rows() const {
  try {
    std::vector<Json> rows = read_metrics(metrics_path_);
    rows.insert(rows.end(), unwritten_.begin(), unwritten_.end());
    return rows;
  } catch (const IoError&) {
    return history_;  // somebody removed it: without the machine's readings
  }
}

}  // namespace strata::report
