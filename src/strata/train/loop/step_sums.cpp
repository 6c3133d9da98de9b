#include "strata/train/loop/step_sums.h"

#include <algorithm>

namespace strata::train {

void StepSums::add(double loss, const std::vector<Figures>& figures, int64_t tokens) {
  for (const Figures& of_micro_step : figures) figures_.add(of_micro_step);
  loss_ += loss;
  ++steps_;
  total_loss_ += loss;
  ++num_steps_;
  num_tokens_ += tokens;
  tokens_ += tokens;
}

Json StepSums::log(Clock::time_point now, double gradient_norm, double learning_rate) {
  logged_tokens_per_second_ = tokens_per_second(now);
  Json row{{"loss", loss_ / static_cast<double>(std::max<int64_t>(steps_, 1))},
           {"grad_norm", gradient_norm},
           {"learning_rate", learning_rate},
           {"num_tokens", static_cast<double>(num_tokens_)}};
  figures_.write_to(row);
  loss_ = 0;
  steps_ = 0;
  figures_ = {};
  since_ = now;
  tokens_ = 0;
  return row;
}

double StepSums::tokens_per_second(Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - since_).count();
  return static_cast<double>(tokens_) / std::max(seconds, 1e-9);
}

double StepSums::mean_loss() const {
  return num_steps_ > 0 ? total_loss_ / static_cast<double>(num_steps_) : 0;
}

Json StepSums::window() const {
  Json window = figures_.state();
  window.update({{"loss", loss_}, {"steps", steps_}});
  return window;
}

Json StepSums::totals() const { return {{"loss", total_loss_}, {"steps", num_steps_}}; }

void StepSums::go_on(const Json& progress) {
  num_tokens_ = progress.at("num_tokens").get<int64_t>();
  const Json& window = progress.at("log_window");
  loss_ = window.at("loss").get<double>();
  steps_ = window.at("steps").get<int64_t>();
  figures_.load(window);
  total_loss_ = 0;
  num_steps_ = 0;
  const auto totals = progress.find("totals");
  if (totals == progress.end()) return;
  total_loss_ = totals->at("loss").get<double>();
  num_steps_ = totals->at("steps").get<int64_t>();
}

}  // namespace strata::train
