// t = s - 1 is DeepSpeed's last_batch_iteration.
#include "strata/optim/deepspeed_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "strata/optim/schedule_kwargs.h"

namespace strata::optim {
namespace {

using Factor = std::function<double(int64_t)>;

// The rise from 0 to 1 over the warm-up.
struct Rise {
  double steps = 2;
  bool logarithmic = true;

  double at(double t) const { return logarithmic ? std::log(t + 1) / std::log(steps) : t / steps; }
};

Rise read_rise(const Kwargs& kwargs, const ScheduleSettings& s) {
  const double automatic = std::max<double>(1, static_cast<double>(s.warmup_steps));
  const double steps = kwargs.number_or_auto("warmup_num_steps", 1000, automatic);
  if (steps < 1 || steps != std::floor(steps)) {
    kwargs.fail("warmup_num_steps", "a whole number of at least 1");
  }
  const std::string type = kwargs.text("warmup_type", "log");
  if (type != "log" && type != "linear") kwargs.fail("warmup_type", "log or linear");
  return {std::max(2.0, steps), type == "log"};
}

double read_total(const Kwargs& kwargs, const ScheduleSettings& s) {
  if (!kwargs.has("total_num_steps")) kwargs.fail("total_num_steps", "the steps of the run");
  const double total =
      kwargs.number_or_auto("total_num_steps", 0, static_cast<double>(s.total_steps));
  if (total < 1 || total != std::floor(total)) {
    kwargs.fail("total_num_steps", "a whole number of at least 1");
  }
  return total;
}

// One below 0 would walk uphill.
double require_rate(const Kwargs& kwargs, const char* key, double rate) {
  if (rate < 0 || !std::isfinite(rate)) kwargs.fail(key, "a learning rate of at least 0");
  return rate;
}

// Absolute learning rates become factors; a learning rate of 0 stays 0.
double factor_of(double rate, const ScheduleSettings& s) {
  return s.learning_rate == 0 ? 0 : rate / s.learning_rate;
}

Factor warmup_then(const ScheduleSettings& s, const Kwargs& kwargs, double default_max,
                   std::function<double(double)> after) {
  const double min =
      require_rate(kwargs, "warmup_min_lr", kwargs.number_or_auto("warmup_min_lr", 0, 0));
  const double max =
      require_rate(kwargs, "warmup_max_lr",
                   kwargs.number_or_auto("warmup_max_lr", default_max, s.learning_rate));
  const Rise rise = read_rise(kwargs, s);
  return [=](int64_t step) {
    const double t = static_cast<double>(step) - 1;
    const double gamma = t < 0 ? 0 : t < rise.steps ? rise.at(t) : after(t);
    return factor_of(min + gamma * (max - min), s);
  };
}

}  // namespace

Factor deepspeed_warmup(const ScheduleSettings& s) {
  const Kwargs kwargs(s, {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"});
  return warmup_then(s, kwargs, s.learning_rate, [](double) { return 1.0; });
}

Factor deepspeed_warmup_decay(const ScheduleSettings& s) {
  const Kwargs kwargs(
      s, {"total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"});
  const double total = read_total(kwargs, s);
  const double warmup = read_rise(kwargs, s).steps;
  return warmup_then(s, kwargs, 0.001, [=](double t) {
    return std::max(0.0, (total - t) / std::max(1.0, total - warmup));
  });
}

Factor deepspeed_warmup_cosine(const ScheduleSettings& s) {
  const Kwargs kwargs(s, {"total_num_steps", "warmup_min_ratio", "warmup_num_steps",
                          "cos_min_ratio", "warmup_type"});
  const double total = read_total(kwargs, s);
  const double start = kwargs.number("warmup_min_ratio", 0);
  const double least = kwargs.number("cos_min_ratio", 1e-4);
  const Rise rise = read_rise(kwargs, s);
  return [=](int64_t step) {
    const double t = static_cast<double>(step) - 1;
    if (t < 0) return 0.0;
    if (t < rise.steps) return start + (1 - start) * rise.at(t);
    const double part = std::min(1.0, (t - rise.steps + 1) / std::max(1.0, total - rise.steps));
    return least + (1 - least) * (1 + std::cos(std::numbers::pi * part)) / 2;
  };
}

namespace {

// One half of the cycle: the part of its height at a distance from its foot. `stairs`: equal
// stairs that it is climbed in; 0: none.
struct Slope {
  double steps, stairs;

  double at(double distance) const {
    if (stairs <= 0) return distance / steps;
    return std::floor(distance * stairs / steps) / stairs;
  }
};

Slope read_slope(const Kwargs& kwargs, const char* steps_key, double steps, const char* stairs_key,
                 double stairs) {
  const Slope slope{kwargs.number(steps_key, steps), kwargs.number(stairs_key, stairs)};
  if (slope.steps < 0) kwargs.fail(steps_key, "steps of at least 0");
  if (slope.stairs != std::floor(slope.stairs)) kwargs.fail(stairs_key, "a whole number");
  return slope;
}

}  // namespace

Factor deepspeed_one_cycle(const ScheduleSettings& s) {
  const Kwargs kwargs(
      s, {"cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size",
          "cycle_second_step_size", "cycle_first_stair_count", "cycle_second_stair_count",
          "decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"});
  if (!kwargs.has("cycle_min_lr")) kwargs.fail("cycle_min_lr", "a learning rate");
  if (!kwargs.has("cycle_max_lr")) kwargs.fail("cycle_max_lr", "a learning rate");
  if (kwargs.flag("cycle_momentum", true)) {
    kwargs.fail("cycle_momentum", "false, momentum does not change in this version,");
  }
  const double min = require_rate(kwargs, "cycle_min_lr", kwargs.number("cycle_min_lr", 0));
  const double max = require_rate(kwargs, "cycle_max_lr", kwargs.number("cycle_max_lr", 0));
  const Slope up = read_slope(kwargs, "cycle_first_step_size", 2000, "cycle_first_stair_count", 0);
  const Slope down =
      read_slope(kwargs, "cycle_second_step_size", up.steps, "cycle_second_stair_count", up.stairs);
  if (up.steps <= 0) kwargs.fail("cycle_first_step_size", "steps of more than 0");
  const double rate = kwargs.number("decay_lr_rate", 0);
  const double decay_steps = kwargs.number("decay_step_size", 0);
  return [=](int64_t step) {
    const double at = static_cast<double>(step);
    const double end = up.steps + down.steps;
    double lr = min;
    // Without a way down the cycle ends before its peak.
    if (at <= up.steps && at < end) {
      lr = min + (max - min) * up.at(at);
    } else if (at < end) {
      lr = min + (max - min) * down.at(end - at);
    } else if (decay_steps > 0) {
      lr = min / (1 + rate * (at - end) / decay_steps);
    }
    return factor_of(lr, s);
  };
}

Factor deepspeed_range_test(const ScheduleSettings& s) {
  const Kwargs kwargs(s, {"lr_range_test_min_lr", "lr_range_test_step_size",
                          "lr_range_test_step_rate", "lr_range_test_staircase"});
  const double min =
      require_rate(kwargs, "lr_range_test_min_lr", kwargs.number("lr_range_test_min_lr", 1e-3));
  const double size = kwargs.number("lr_range_test_step_size", 2000);
  if (size <= 0) kwargs.fail("lr_range_test_step_size", "more than 0");
  const double rate = kwargs.number("lr_range_test_step_rate", 1);
  const bool stairs = kwargs.flag("lr_range_test_staircase", false);
  return [=](int64_t step) {
    const double intervals = static_cast<double>(step) / size;
    return factor_of(min * (1 + rate * (stairs ? std::floor(intervals) : intervals)), s);
  };
}

}  // namespace strata::optim
