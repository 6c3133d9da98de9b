// What a run's steps add up to: since the last log, and over all of the run and of those that it
// continues from; and how fast they are. Owns: the sums. Never: where they are shown
// (report/run_log.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "strata/base/json.h"
#include "strata/train/loop/figures.h"

namespace strata::train {

// Every rank must report the same except for times, which are its own.
class StepSums {
 public:
  using Clock = std::chrono::steady_clock;

  // Training begins: speeds are of the time from here on.
  void start(Clock::time_point now) { since_ = now; }
  // A step that was learnt from. `loss`: of all ranks; `figures`: by micro-step; `tokens`: of the
  // rows of all ranks.
  void add(double loss, const std::vector<Figures>& figures, int64_t tokens);
  // Excludes from the elapsed time a pause in which the run did not train.
  void leave_out(Clock::duration pause) { since_ += pause; }

  bool has_unlogged() const { return steps_ > 0; }
  // The row of the steps since the last log, in the reference's keys; those that follow begin anew.
  // The last two figures are the last step's.
  Json log(Clock::time_point now, double gradient_norm, double learning_rate);

  // Since the last log.
  double tokens_per_second(Clock::time_point now) const;
  // The value of the last log; 0 before the first.
  double logged_tokens_per_second() const { return logged_tokens_per_second_; }
  // Tokens seen by all ranks, in this run and those that it continues.
  int64_t num_tokens() const { return num_tokens_; }
  // The same of the loss, over steps; of those before the checkpoint nothing where that does not
  // say it (older versions, other tools). 0 without any.
  double mean_loss() const;

  // What a checkpoint keeps of the steps since the last log, so that a resumed run logs what an
  // uninterrupted one would.
  Json window() const;
  // And of all its steps.
  Json totals() const;
  // Restores the sums from a checkpoint's progress. Throws Json::exception.
  void go_on(const Json& progress);

 private:
  // Since the last log.
  double loss_ = 0;
  int64_t steps_ = 0;
  MeanFigures figures_;
  Clock::time_point since_;
  int64_t tokens_ = 0;  // of this process

  double logged_tokens_per_second_ = 0;
  int64_t num_tokens_ = 0;
  double total_loss_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace strata::train
