#include "strata/optim/metric_schedule.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "strata/base/error.h"

namespace strata::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Reads lr_scheduler_kwargs of one type and refuses what the type does not know.
class Kwargs {
 public:
  Kwargs(const std::string& type, const Json& values, const std::set<std::string>& known)
      : type_(type), values_(values) {
    for (const auto& [key, value] : values.items()) {
      if (!known.count(key)) fail(key, fmt::format("one of [{}]", fmt::join(known, ", ")));
    }
  }
  double number(const std::string& key, double fallback) const {
    if (!values_.contains(key)) return fallback;
    if (!values_[key].is_number()) fail(key, "a number");
    return values_[key].get<double>();
  }
  int64_t count(const std::string& key, int64_t fallback) const {
    if (!values_.contains(key)) return fallback;
    if (!values_[key].is_number_unsigned()) fail(key, "an integer of at least 0");
    return values_[key].get<int64_t>();
  }
  bool flag(const std::string& key, bool fallback) const {
    if (!values_.contains(key)) return fallback;
    if (!values_[key].is_boolean()) fail(key, "true or false");
    return values_[key].get<bool>();
  }
  // Whether the text is `first`; the only other value allowed is `second`.
  bool is_first(const std::string& key, const std::string& first, const std::string& second,
                bool fallback) const {
    if (!values_.contains(key)) return fallback;
    if (values_[key] == first) return true;
    if (values_[key] == second) return false;
    fail(key, fmt::format("\"{}\" or \"{}\"", first, second));
  }
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
    throw ConfigError(
        "lr_scheduler_kwargs: found \"{}\": {}, expected {} for lr_scheduler_type \"{}\"; correct "
        "or remove it",
        key, values_.contains(key) ? values_[key].dump() : "none", expected, type_);
  }

 private:
  const std::string& type_;
  const Json& values_;
};

std::set<std::string> known_keys(bool greedy) {
  std::set<std::string> keys{"mode",           "factor",   "patience", "threshold",
                             "threshold_mode", "cooldown", "min_lr",   "eps"};
  if (greedy) keys.insert({"warmup", "max_lr", "smooth", "window_size", "reset_start", "verbose"});
  return keys;
}

}  // namespace

bool is_metric_schedule(const std::string& type) {
  return type == "reduce_lr_on_plateau" || type == "greedy";
}

MetricSchedule::MetricSchedule(const std::string& type, const Json& values, double learning_rate)
    : greedy_(type == "greedy"), initial_(learning_rate), learning_rate_(learning_rate) {
  const Kwargs kwargs(type, values, known_keys(greedy_));
  minimize_ = kwargs.is_first("mode", "min", "max", true);
  relative_ = kwargs.is_first("threshold_mode", "rel", "abs", !greedy_);
  factor_ = kwargs.number("factor", greedy_ ? 0.95 : 0.1);
  if (factor_ >= 1.0) kwargs.fail("factor", "a number below 1");
  patience_ = kwargs.count("patience", 10);
  threshold_ = kwargs.number("threshold", greedy_ ? 1e-6 : 1e-4);
  cooldown_ = kwargs.count("cooldown", 0);
  min_lr_ = kwargs.number("min_lr", greedy_ ? 1e-3 : 0.0);
  eps_ = kwargs.number("eps", 1e-8);
  if (greedy_) {
    max_lr_ = kwargs.number("max_lr", 1.0);
    warmup_ = kwargs.count("warmup", 0);
    smooth_ = kwargs.flag("smooth", false);
    window_size_ = kwargs.count("window_size", 50);
    reset_start_ = kwargs.count("reset_start", 500);
  }
  until_reset_ = reset_start_;
  best_ = minimize_ ? kInfinity : -kInfinity;
}

void MetricSchedule::step(double metric) {
  if (greedy_) {
    step_greedy(smooth_ ? smoothed(metric) : metric);
  } else {
    step_plateau(metric);
  }
}

double MetricSchedule::smoothed(double metric) {
  window_.push_back(metric);
  if (static_cast<int64_t>(window_.size()) > window_size_) window_.pop_front();
  return std::accumulate(window_.begin(), window_.end(), 0.0) / static_cast<double>(window_.size());
}

bool MetricSchedule::is_better(double current) const {
  if (minimize_) return current < (relative_ ? best_ * (1.0 - threshold_) : best_ - threshold_);
  return current > (relative_ ? best_ * (1.0 + threshold_) : best_ + threshold_);
}

void MetricSchedule::step_plateau(double current) {
  if (is_better(current)) {
    best_ = current;
    num_bad_ = 0;
  } else {
    ++num_bad_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    num_bad_ = 0;
  }
  if (num_bad_ > patience_) {
    reduce();
    cooldown_left_ = cooldown_;
    num_bad_ = 0;
  }
}

void MetricSchedule::step_greedy(double current) {
  if (cooldown_left_ > 0 || warmup_left_ > 0) {
    --(cooldown_left_ > 0 ? cooldown_left_ : warmup_left_);
    num_bad_ = num_good_ = 0;
    return;
  }
  if (is_better(current)) {
    best_ = current;
    num_bad_ = 0;
    ++num_good_;
  } else {
    ++num_bad_;
    num_good_ = 0;
  }
  if (num_good_ > patience_) {
    increase();
    warmup_left_ = warmup_;
    num_good_ = 0;
  } else if (num_bad_ > patience_) {
    reduce();
    cooldown_left_ = cooldown_;
    num_bad_ = 0;
  }
}

void MetricSchedule::reduce() {
  const double reduced = std::max(learning_rate_ * factor_, min_lr_);
  if (learning_rate_ - reduced > eps_) learning_rate_ = reduced;
  if (greedy_ && learning_rate_ <= min_lr_ && --until_reset_ <= 0) reset();
}

void MetricSchedule::increase() {
  const double increased = std::min(learning_rate_ / factor_, max_lr_);
  if (increased - learning_rate_ > eps_) learning_rate_ = increased;
  until_reset_ = reset_start_;
}

void MetricSchedule::reset() {
  learning_rate_ = initial_;
  best_ = minimize_ ? kInfinity : -kInfinity;
  num_bad_ = num_good_ = cooldown_left_ = warmup_left_ = 0;
  until_reset_ = reset_start_;
  window_.clear();
}

Json MetricSchedule::state() const {
  // JSON has no infinity: a best value that is not set yet is null.
  return Json{{"type", greedy_ ? "greedy" : "reduce_lr_on_plateau"},
              {"learning_rate", learning_rate_},
              {"best", std::abs(best_) == kInfinity ? Json() : Json(best_)},
              {"num_bad", num_bad_},
              {"num_good", num_good_},
              {"cooldown_left", cooldown_left_},
              {"warmup_left", warmup_left_},
              {"until_reset", until_reset_},
              {"window", std::vector<double>(window_.begin(), window_.end())}};
}

void MetricSchedule::load(const Json& state) {
  learning_rate_ = state.at("learning_rate").get<double>();
  if (!state.at("best").is_null()) best_ = state.at("best").get<double>();
  num_bad_ = state.at("num_bad").get<int64_t>();
  num_good_ = state.at("num_good").get<int64_t>();
  cooldown_left_ = state.at("cooldown_left").get<int64_t>();
  warmup_left_ = state.at("warmup_left").get<int64_t>();
  until_reset_ = state.at("until_reset").get<int64_t>();
  const auto window = state.at("window").get<std::vector<double>>();
  window_.assign(window.begin(), window.end());
}

}  // namespace strata::optim
