// Learning rates that answer to an evaluated metric instead of the step: reduce_lr_on_plateau and
// greedy. Owns: their counters, which are part of a checkpoint.
// Source: torch.optim.lr_scheduler.ReduceLROnPlateau, transformers 5 GreedyLR.
#pragma once

#include <deque>
#include <limits>
#include <string>

#include "strata/base/json.h"

namespace strata::optim {

bool is_metric_schedule(const std::string& lr_scheduler_type);

class MetricSchedule {
 public:
  // `kwargs`: lr_scheduler_kwargs; an unknown or wrong one is a ConfigError.
  MetricSchedule(const std::string& type, const Json& kwargs, double learning_rate);

  double learning_rate() const { return learning_rate_; }
  // After every evaluation.
  void step(double metric);

  Json state() const;
  void load(const Json& state);

 private:
  bool is_better(double current) const;
  void step_plateau(double current);
  void step_greedy(double current);
  void reduce();
  void increase();
  void reset();
  double smoothed(double metric);

  bool greedy_;
  bool minimize_ = true;
  bool relative_;
  bool smooth_ = false;
  double factor_, threshold_, eps_ = 1e-8;
  double min_lr_, max_lr_ = std::numeric_limits<double>::infinity();
  int64_t patience_ = 10, cooldown_ = 0, warmup_ = 0, reset_start_ = 500, window_size_ = 50;
  double initial_;

  double learning_rate_;
  double best_;
  int64_t num_bad_ = 0, num_good_ = 0, cooldown_left_ = 0, warmup_left_ = 0, until_reset_;
  std::deque<double> window_;
};

}  // namespace strata::optim
