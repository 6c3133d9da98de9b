// The part of Trainer that tells: sums since the last log, the machine's readings, the state that
// checkpoints and results carry.
#include <sys/resource.h>

#include "strata/launch/restarts.h"
#include "strata/memory/device_probe.h"
#include "strata/train/loop/trainer.h"

namespace strata::train {
namespace {

using Clock = std::chrono::steady_clock;

double peak_rss_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

// In MiB, as peak_rss_mb(); 0 without an accelerator.
double device_memory_mb(at::Device device) {
  return static_cast<double>(memory::device_memory(device).allocated_peak) / (1 << 20);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Set when the program is loaded, not at the first log.
const double kProcessStart = seconds_since_1970();

// Since when seconds are counted: the launcher's start when it said so, else this process's.
double start_time() { return launch::launch_time().value_or(kProcessStart); }

}  // namespace

void Trainer::account(const StepOutcome& outcome) {
  sums_.add(outcome.loss, outcome.figures, outcome.row_tokens);
  if (!is_main()) return;
  log_.show({.step = step_,
             .loss = outcome.loss,
             .tokens_per_second = sums_.tokens_per_second(Clock::now()),
             .elapsed_seconds = elapsed_seconds(),
             .peak_rss_mb = peak_rss_mb(),
             .device_memory_mb = device_memory_mb(trainee_.store->options().device)});
}

double Trainer::elapsed_seconds() const {
  return seconds_before_ + seconds_since_1970() - start_time();
}

void Trainer::count_on() {
  double last = 0;
  for (const Json& row : log_.rows()) last = row.value("elapsed_seconds", last);
  // A launcher that has started its ranks again has counted on by itself.
  const double counted = launch::restart_count() > 0 ? elapsed_seconds() : 0;
  seconds_before_ = std::max(0.0, last - counted);
}

Json Trainer::machine_readings() const {
  Json readings = Json::object();
  // Before the first log of a loss nobody knows it.
  const double speed = sums_.logged_tokens_per_second();
  if (speed > 0) readings["tokens_per_second"] = speed;
  readings["elapsed_seconds"] = elapsed_seconds();
  readings["peak_rss_mb"] = peak_rss_mb();
  readings["device_memory_mb"] = device_memory_mb(trainee_.store->options().device);
  return readings;
}

void Trainer::log_step(const StepOutcome& outcome) {
  Json values = sums_.log(Clock::now(), outcome.gradient_norm, outcome.learning_rate);
  Json readings = machine_readings();
  if (config_.train.wall_clock_breakdown) {
    readings["step_seconds"] = step_time_.values();
    say(step_time_.line());
  }
  step_time_ = {};
  record(std::move(values), readings);
}

void Trainer::record(Json values, const Json& readings) {
  // Rows stay for the whole run: of the ranks of a machine one keeps them.
  if (!is_main()) return;
  log_.append(std::move(values), step_, plan_.epoch_after(step_), readings);
}

report::TrainerState Trainer::state() const {
  report::TrainerState state;
  state.epoch = plan_.epoch_after(step_);
  state.global_step = step_;
  state.max_steps = plan_.max_steps;
  state.logging_steps = plan_.logging_steps;
  // Trainer's own where no evaluation goes by them.
  const config::TrainConfig& train = config_.train;
  const bool goes_by_steps = train.eval_strategy == config::Interval::kSteps;
  if (goes_by_steps || train.eval_steps) state.eval_steps = plan_.eval_steps;
  state.save_steps = plan_.save_steps;
  state.train_batch_size = config_.train.per_device_train_batch_size;
  state.num_train_epochs = plan_.num_epochs;
  state.num_input_tokens_seen = sums_.num_tokens();
  state.total_flos = floating_point_operations();
  state.log_history = log_.history();
  state.should_training_stop = is_done();
  checkpoints_.best().fill(state);
  early_stopping_.fill(state);
  return state;
}

double Trainer::floating_point_operations() const {
  double weights = 0;
  for (const nn::Parameter* parameter : trainee_.model->parameters()) {
    const bool counts = !parameter->is_embedding_table() && !parameter->is_buffer();
    if (counts) weights += static_cast<double>(parameter->numel());
  }
  return 6 * static_cast<double>(sums_.num_tokens()) * weights;
}

void Trainer::log_summary(double seconds) {
  const int64_t steps = step_ - checkpoints_.first_step();
  // Trainer's count: rows of all epochs, or full batches of max_steps; of a part of the steps that
  // part.
  const double rows =
      config_.train.max_steps > 0
          ? static_cast<double>(plan_.max_steps * plan_.accumulation *
                                config_.train.per_device_train_batch_size *
                                trainee_.store->mesh().data_parallel_size())
          : static_cast<double>(datasets_.train.size()) * config_.train.num_train_epochs;
  const double samples = rows * static_cast<double>(steps) / static_cast<double>(plan_.max_steps);
  record(Json{{"train_runtime", seconds},
              {"train_samples_per_second", samples / std::max(seconds, 1e-9)},
              {"train_steps_per_second", static_cast<double>(steps) / std::max(seconds, 1e-9)},
              {"total_flos", floating_point_operations()},
              {"train_loss", sums_.mean_loss()}},
         machine_readings());
}

}  // namespace strata::train
