#include "strata/train/loop/schedules.h"

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/config/derived.h"
#include "strata/optim/lr_schedule.h"

namespace strata::train {
namespace {

Json schedule_kwargs(const config::OptimConfig& optim) {
  if (optim.lr_scheduler_kwargs.empty()) return Json::object();
  return parse_json(optim.lr_scheduler_kwargs, "lr_scheduler_kwargs");
}

}  // namespace

std::function<double(int64_t)> lr_schedule(const config::OptimConfig& optim, int64_t max_steps) {
  if (optim::is_metric_schedule(optim.lr_scheduler_type)) return {};
  optim::ScheduleSettings settings;
  settings.type = optim.lr_scheduler_type;
  settings.kwargs = schedule_kwargs(optim);
  settings.total_steps = max_steps;
  settings.learning_rate = optim.learning_rate;
  settings.warmup_steps = config::num_warmup_steps(optim, max_steps);
  return optim::make_schedule(settings);
}

std::optional<optim::MetricSchedule> metric_schedule(const config::RunConfig& config) {
  if (!optim::is_metric_schedule(config.optim.lr_scheduler_type)) return std::nullopt;
  if (config.train.eval_strategy == config::Interval::kNo) {
    throw ConfigError(
        "lr_scheduler_type: found {} with eval_strategy no, expected evaluations to react to; set "
        "eval_strategy to steps or epoch",
        config.optim.lr_scheduler_type);
  }
  return optim::MetricSchedule(config.optim.lr_scheduler_type, schedule_kwargs(config.optim),
                               config.optim.learning_rate);
}

void require_schedule(const config::RunConfig& config) {
  constexpr int64_t kAnySteps = 1'000'000;
  lr_schedule(config.optim, config.train.max_steps > 0 ? config.train.max_steps : kAnySteps);
  metric_schedule(config);
}

std::optional<optim::LossScaler> loss_scaler(const config::ShardConfig& shard) {
  if (!shard.fp16) return std::nullopt;
  return optim::LossScaler({.fixed_scale = shard.loss_scale,
                            .initial_scale = shard.initial_loss_scale,
                            .growth_interval = shard.loss_scale_window,
                            .hysteresis = shard.loss_scale_hysteresis,
                            .min_scale = shard.min_loss_scale});
}

}  // namespace strata::train
