#include "strata/optim/loss_scaler.h"

#include <algorithm>

#include "strata/base/error.h"

namespace strata::optim {
namespace {

// A scale below this asks for gradients beyond 2^32: they were not finite to begin with.
constexpr double kSmallestScale = 0x1p-16;

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options),
      scale_(options.fixed_scale > 0 ? options.fixed_scale : options.initial_scale),
      hysteresis_left_(options.hysteresis) {}

void LossScaler::update(bool overflow) {
  if (overflow) ++num_skipped_;
  if (options_.fixed_scale > 0) return;
  if (overflow) {
    clean_steps_ = 0;
    if (hysteresis_left_ > 1) {
      --hysteresis_left_;
    } else {
      lower();
    }
  } else if (++clean_steps_ == options_.growth_interval) {
    scale_ *= 2;
    clean_steps_ = 0;
    hysteresis_left_ = options_.hysteresis;
  }
}

void LossScaler::lower() {
  const double smallest = std::max(options_.min_scale, kSmallestScale);
  if (scale_ <= smallest) {
    throw Error(
        fmt::format("loss scale: found gradients that are not finite even at a scale of {}, "
                    "expected finite ones; lower learning_rate, use bf16 or look at the data, then "
                    "resume from the last checkpoint",
                    scale_));
  }
  scale_ = std::max(scale_ / 2, smallest);
}

Json LossScaler::state() const {
  return Json{{"scale", scale_},
              {"clean_steps", clean_steps_},
              {"hysteresis_left", hysteresis_left_},
              {"skipped_steps", num_skipped_}};
}

void LossScaler::load(const Json& state) {
  scale_ = state.at("scale").get<double>();
  clean_steps_ = state.at("clean_steps").get<int64_t>();
  hysteresis_left_ = state.at("hysteresis_left").get<int64_t>();
  num_skipped_ = state.at("skipped_steps").get<int64_t>();
}

void LossScaler::return_to(const Json& state) {
  const int64_t skipped = num_skipped_;
  load(state);
  num_skipped_ = skipped;
}

}  // namespace strata::optim
