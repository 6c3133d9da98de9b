// What the training loop tells: sums since the last log, evaluations, the machine's readings, the
// state that checkpoints and results carry.
#include <sys/resource.h>

#include "strata/base/error.h"
#include "strata/base/phases.h"
#include "strata/base/seconds_since.h"
#include "strata/launch/restarts.h"
#include "strata/memory/device_probe.h"
#include "strata/train/loop/answers.h"
#include "strata/train/loop/evaluate.h"
#include "strata/train/loop/trainer.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;
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

// Since the launcher started when it said so, else since this process did.
double seconds_since_launch() {
  return seconds_since_1970() - launch::launch_time().value_or(kProcessStart);
}

}  // namespace

void Trainer::account(const StepOutcome& outcome) {
  for (const Figures& figures : outcome.figures) window_.figures.add(figures);
  window_.loss += outcome.loss;
  ++window_.steps;
  total_loss_ += outcome.loss;
  ++num_learned_;
  num_tokens_ += outcome.row_tokens;
  speed_tokens_ += outcome.row_tokens;
  if (!progress_) return;
  const double seconds = std::max(seconds_since(speed_since_), 1e-9);
  progress_->step({.step = step_,
                   .loss = outcome.loss,
                   .tokens_per_second = static_cast<double>(speed_tokens_) / seconds,
                   .elapsed_seconds = seconds_since_launch(),
                   .peak_rss_mb = peak_rss_mb(),
                   .device_memory_mb = device_memory_mb(trainee_.store->options().device)});
}

double Trainer::mean_loss() const {
  return num_learned_ > 0 ? total_loss_ / static_cast<double>(num_learned_) : 0;
}

Json Trainer::machine_readings() const {
  Json readings = Json::object();
  // Before the first log of a loss nobody knows it.
  if (tokens_per_second_ > 0) readings["tokens_per_second"] = tokens_per_second_;
  readings["elapsed_seconds"] = seconds_since_launch();
  readings["peak_rss_mb"] = peak_rss_mb();
  readings["device_memory_mb"] = device_memory_mb(trainee_.store->options().device);
  return readings;
}

void Trainer::log_step(const StepOutcome& outcome) {
  tokens_per_second_ =
      static_cast<double>(speed_tokens_) / std::max(seconds_since(speed_since_), 1e-9);
  speed_since_ = Clock::now();
  speed_tokens_ = 0;
  Json values{{"loss", window_.loss / static_cast<double>(std::max<int64_t>(window_.steps, 1))},
              {"grad_norm", outcome.gradient_norm},
              {"learning_rate", outcome.learning_rate},
              {"num_tokens", static_cast<double>(num_tokens_)}};
  window_.figures.write_to(values);
  window_ = {};
  Json readings = machine_readings();
  if (config_.train.wall_clock_breakdown) {
    readings["step_seconds"] = step_time_.values();
    say(step_time_.line());
  }
  step_time_ = {};
  record(std::move(values), readings);
}

void Trainer::record(Json values, const Json& extra) {
  values["epoch"] = plan_.epoch_after(step_);
  if (progress_) progress_->log(values);
  values["step"] = step_;
  log_history_.push_back(values);
  if (!metrics_) return;
  for (const auto& [key, value] : extra.items()) values[key] = value;
  append_metrics(values);
  if (!events_) return;
  try {
    events_->append(values, step_);
  } catch (const IoError& error) {
    // A picture of the run is not worth the run.
    say(fmt::format("warning: {}; no more of them are written, training goes on", error.what()));
    events_.reset();
  }
}

// A disk that is full for a while costs no more than a checkpoint does.
void Trainer::append_metrics(const Json& row) {
  unwritten_metrics_.push_back(row);
  std::string why;
  if (write_kept_metrics(why) || unwritten_metrics_.size() > 1) return;  // the row before told it
  say(fmt::format("warning: {}; training goes on, rows are kept until there is room", why));
}

bool Trainer::write_kept_metrics(std::string& why) {
  try {
    while (!unwritten_metrics_.empty()) {
      metrics_->append(unwritten_metrics_.front());
      unwritten_metrics_.pop_front();
    }
  } catch (const IoError& error) {
    why = error.what();
    return false;
  }
  return true;
}

void Trainer::settle_metrics() {
  std::string why;
  if (!metrics_ || write_kept_metrics(why)) return;
  say(fmt::format(
      "warning: {}; {} row{} missing in it (what is saved of the run says the same in "
      "trainer_state.json's log_history)",
      why, unwritten_metrics_.size(), unwritten_metrics_.size() == 1 ? " is" : "s are"));
}

Trainer::Evaluation Trainer::evaluate(bool decides) {
  if (!datasets_.eval) return Evaluation::kOrdinary;
  set_phase(kEvaluatingPhase);
  const Clock::time_point start = Clock::now();
  // An evaluation may take longer than a scheduler waits between its signal and the end.
  const StopRequest asked = signals_ ? [this] { return signals_->is_requested(); } : StopRequest();
  const auto found = evaluate_dataset(*datasets_.eval, config_, trainee_, recipe_, asked);
  const bool answers = config_.train.predict_with_generate;
  std::optional<double> exact;
  if (found && answers) {
    exact = exact_answers(*datasets_.eval, config_, *datasets_.tokenizer, trainee_, asked);
  }
  if (!found || (answers && !exact)) {
    owes_evaluation_ = true;
    return Evaluation::kBrokenOff;
  }
  const EvalSums& sums = *found;
  const double seconds = std::max(seconds_since(start), 1e-9);
  const double rows = static_cast<double>(datasets_.eval->size());
  Json values{{"eval_loss", sums.mean_loss},
              {"eval_runtime", seconds},
              {"eval_samples_per_second", rows / seconds},
              {"eval_steps_per_second", static_cast<double>(sums.num_batches) / seconds},
              {"eval_num_tokens", static_cast<double>(num_tokens_)}};
  sums.figures.write_to(values, "eval_");
  if (exact) values["eval_accuracy"] = *exact;
  bool is_best = false;
  const BestCheckpoint& best = checkpoints_.best();
  if (decides && !best.metric().empty()) {
    // Seconds are others on every rank: rank 0's count.
    at::Tensor shared = at::full({1}, values.at(best.metric()).get<double>(), at::kDouble);
    world_.broadcast(shared, /*root=*/0)->wait();
    const double value = shared.item<double>();
    // A save that failed takes the best value back, on all ranks before any judges.
    if (saver_) report_save(saver_->wait(), /*must_hold=*/false);
    early_stopping_.judge(value, best.value());
    is_best = checkpoints_.judge(value, step_);
    if (metric_schedule_) metric_schedule_->step(value);
  }
  record(std::move(values), machine_readings());
  set_phase(kTrainingPhase);
  // The evaluation's seconds are not training's.
  speed_since_ += std::chrono::duration_cast<Clock::duration>(Clock::now() - start);
  return is_best ? Evaluation::kBest : Evaluation::kOrdinary;
}

std::string Trainer::early_end_line() const {
  const int64_t counter = early_stopping_.counter();
  std::string line = fmt::format(
      "early stopping: {} has not become better in {} evaluation{} (early_stopping_patience {}); "
      "training ends after step {} of {}",
      checkpoints_.best().metric(), counter, counter == 1 ? "" : "s",
      *config_.train.early_stopping_patience, step_, plan_.max_steps);
  // A resumed run that goes no further: it was the whole run that was saved.
  if (step_ == checkpoints_.first_step()) line += "; raise early_stopping_patience to train on";
  return line;
}

report::TrainerState Trainer::state() const {
  report::TrainerState state;
  state.epoch = plan_.epoch_after(step_);
  state.global_step = step_;
  state.max_steps = plan_.max_steps;
  state.logging_steps = plan_.logging_steps;
  state.eval_steps = plan_.eval_steps;
  state.save_steps = plan_.save_steps;
  state.train_batch_size = config_.train.per_device_train_batch_size;
  state.num_train_epochs = plan_.num_epochs;
  state.num_input_tokens_seen = num_tokens_;
  state.log_history = log_history_;
  state.should_training_stop = is_done();
  checkpoints_.best().fill(state);
  early_stopping_.fill(state);
  return state;
}

void Trainer::log_summary(double seconds) {
  const int64_t steps = step_ - checkpoints_.first_step();
  const double samples =
      static_cast<double>(steps * plan_.accumulation * config_.train.per_device_train_batch_size *
                          trainee_.store->mesh().data_parallel_size());
  record(Json{{"train_runtime", seconds},
              {"train_samples_per_second", samples / std::max(seconds, 1e-9)},
              {"train_steps_per_second", static_cast<double>(steps) / std::max(seconds, 1e-9)},
              {"total_flos", 0.0},
              {"train_loss", mean_loss()}},
         machine_readings());
}

std::vector<Json> Trainer::metrics_rows() const {
  try {
    std::vector<Json> rows =
        report::read_metrics(fs::path(config_.train.output_dir) / "metrics.jsonl");
    rows.insert(rows.end(), unwritten_metrics_.begin(), unwritten_metrics_.end());
    return rows;
  } catch (const IoError&) {
    return log_history_;  // somebody removed it: without the machine's readings
  }
}

}  // namespace strata::train
