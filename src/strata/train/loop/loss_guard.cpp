#include "strata/train/loop/loss_guard.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace strata::train {
namespace {

// The sign of what is no number means nothing, and differs between processors.
std::string text_of(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

}  // namespace

std::optional<std::string> LossGuard::judge(double loss, double gradient_norm) {
  ++in_a_row_;
  if (!std::isfinite(loss))
    return fmt::format("a loss of {}, expected a finite one", text_of(loss));
  if (!std::isfinite(gradient_norm)) {
    return fmt::format("a gradient norm of {}, expected a finite one", text_of(gradient_norm));
  }
  if (max_spike_ > 0 && seen_ >= kFirstLosses && loss > most_expected()) {
    // For losses above 0 the magnitude is the mean.
    const std::string bound = magnitude_ > mean_ ? fmt::format("{:.6g} with a", most_expected())
                                                 : fmt::format("{} times the", max_spike_);
    return fmt::format("a loss of {:.6g}, expected at most {} running mean of {:.6g}", loss, bound,
                       mean_);
  }
  in_a_row_ = 0;
  ++seen_;
  // The plain means of the first twenty, then ones that forget.
  const auto weight = static_cast<double>(std::min<int64_t>(seen_, 20));
  mean_ += (loss - mean_) / weight;
  magnitude_ += (std::abs(loss) - magnitude_) / weight;
  return std::nullopt;
}

double LossGuard::most_expected() const { return mean_ + (max_spike_ - 1) * magnitude_; }

Json LossGuard::state() const {
  return Json{{"mean", mean_}, {"magnitude", magnitude_}, {"seen", seen_}, {"in_a_row", in_a_row_}};
}

void LossGuard::load(const Json& state) {
  mean_ = state.at("mean").get<double>();
  magnitude_ = state.value("magnitude", std::abs(mean_));
  seen_ = state.at("seen").get<int64_t>();
  in_a_row_ = state.at("in_a_row").get<int64_t>();
}

}  // namespace strata::train
