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
  if (max_spike_ > 0 && seen_ >= kFirstLosses && loss > max_spike_ * mean_) {
    return fmt::format("a loss of {:.6g}, expected at most {} times the running mean of {:.6g}",
                       loss, max_spike_, mean_);
  }
  in_a_row_ = 0;
  ++seen_;
  // The plain mean of the first twenty, then one that forgets.
  mean_ += (loss - mean_) / static_cast<double>(std::min<int64_t>(seen_, 20));
  return std::nullopt;
}

Json LossGuard::state() const {
  return Json{{"mean", mean_}, {"seen", seen_}, {"in_a_row", in_a_row_}};
}

void LossGuard::load(const Json& state) {
  mean_ = state.at("mean").get<double>();
  seen_ = state.at("seen").get<int64_t>();
  in_a_row_ = state.at("in_a_row").get<int64_t>();
}

}  // namespace strata::train
