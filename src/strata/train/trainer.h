// The training loop: steps, logging, evaluation, saving, in the reference Trainer's order. Owns:
// the counters of a run. Never: how a step is computed (shard/, optim/) or what files hold
// (report/, checkpoint/).
#pragma once

#include <chrono>
#include <optional>

#include "strata/data/sampler.h"
#include "strata/optim/loss_scaler.h"
#include "strata/optim/metric_schedule.h"
#include "strata/report/metrics_file.h"
#include "strata/report/progress.h"
#include "strata/report/trainer_state.h"
#include "strata/train/assemble.h"
#include "strata/train/datasets.h"
#include "strata/train/run.h"
#include "strata/train/step_plan.h"

namespace strata::train {

// Sums since the last log; part of a checkpoint, so that a resumed run logs what an uninterrupted
// one would.
struct LogWindow {
  double loss = 0;      // of step losses
  double accuracy = 0;  // of the means over each micro-step's trained tokens, as the reference logs
  double entropy = 0;   // likewise
  int64_t micro_steps = 0;
  int64_t steps = 0;
};

// Collective: run(), on every rank with the same settings.
class Trainer {
 public:
  Trainer(const config::RunConfig& config, const std::string& settings_text, Trainee& trainee,
          const Datasets& datasets, const Output& output);
  ~Trainer();

  // Trains to the end. Returns the mean loss over all steps of this run.
  double run();

  int64_t global_step() const { return step_; }
  const StepPlan& plan() const { return plan_; }
  // Rank 0: the rows of metrics.jsonl so far.
  std::vector<Json> metrics_rows() const;
  report::TrainerState state() const;
  // Writes a line above the progress bar (rank 0).
  void say(const std::string& line);

 private:
  struct StepOutcome {
    std::vector<nn::LossSums> sums;  // of this rank, by micro-step
    int64_t row_tokens = 0;
    double loss = 0;  // global
    double gradient_norm = 0;
    double learning_rate = 0;
  };

  bool is_main() const { return world_.rank() == 0; }
  void resume();
  StepOutcome train_step();
  std::vector<data::MicroBatch> micro_batches(const StepPlan::Window& window) const;
  void account(StepOutcome& outcome);
  void log_step(const StepOutcome& outcome);
  void evaluate();
  void save();
  void log_summary(double seconds);
  // Appends to log history, metrics and terminal. `extra` goes to metrics.jsonl alone.
  void record(Json values, const Json& extra);
  Json machine_readings() const;
  std::string progress_text() const;
  double learning_rate() const;
  // Applies the step's gradients, or skips them on every rank alike when fp16 overflowed.
  void update(StepOutcome& outcome);

  const config::RunConfig& config_;
  std::string settings_text_;
  Trainee& trainee_;
  comm::Group& world_;
  const Datasets& datasets_;
  data::BatchSampler sampler_;
  StepPlan plan_;
  // One of the two: by step, or by the evaluated loss.
  std::function<double(int64_t)> lr_factor_;
  std::optional<optim::MetricSchedule> metric_schedule_;
  std::optional<optim::LossScaler> loss_scaler_;  // fp16
  std::unique_ptr<report::Progress> progress_;    // rank 0
  std::unique_ptr<report::MetricsFile> metrics_;  // rank 0

  int64_t step_ = 0;
  int64_t first_step_ = 0;
  int64_t num_tokens_ = 0;  // seen by all ranks
  double total_loss_ = 0;   // of the steps of this run
  LogWindow window_;
  std::vector<Json> log_history_;
  // For the speed since the last log.
  std::chrono::steady_clock::time_point speed_since_;
  int64_t speed_tokens_ = 0;
  double tokens_per_second_ = 0;
};

}  // namespace strata::train
