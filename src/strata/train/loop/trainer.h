// The training loop: steps, logging, evaluation, saving, in the reference Trainer's order. Owns:
// that order. Never: how a step is computed (shard/, optim/), what files hold (report/,
// checkpoint/), how a save is made or which checkpoints count (saving/).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "strata/base/activity_timer.h"
#include "strata/data/sampler.h"
#include "strata/optim/loss_scaler.h"
#include "strata/optim/metric_schedule.h"
#include "strata/report/run_log.h"
#include "strata/report/step_time.h"
#include "strata/report/trainer_state.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/early_stopping.h"
#include "strata/train/loop/evaluate.h"
#include "strata/train/loop/figures.h"
#include "strata/train/loop/loss_guard.h"
#include "strata/train/loop/step_plan.h"
#include "strata/train/loop/step_sums.h"
#include "strata/train/loop/stop_signals.h"
#include "strata/train/recipes/recipe.h"
#include "strata/train/run.h"
#include "strata/train/saving/resume.h"
#include "strata/train/saving/run_checkpoints.h"
#include "strata/train/saving/run_saver.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

class StepProfile;

struct Saving {
  // The group of all ranks, for the saving thread; others use it only while no save is written.
  comm::Group& group;
  bool writes_result = true;  // at the end, by somebody else
};

// Collective: run(), on every rank with the same settings.
class Trainer {
 public:
  Trainer(const config::RunConfig& config, const std::string& settings_text, Trainee& trainee,
          const Datasets& datasets, Recipe& recipe, const Saving& saving, const Output& output);
  ~Trainer();

  // Trains to the end, which may be an early one, or until a signal asks to stop (is_stopped()):
  // then the state is saved. Returns the mean loss over all steps of this run.
  double run();
  bool is_stopped() const { return is_stopped_; }
  // Whether SIGTERM asks this rank to, also after the last step.
  bool is_told_to_end() const { return signals_ && signals_->is_told_to_end(); }
  // Whether an update has changed weights, in this run or in those that it continues from.
  bool has_learned() const { return has_learned_; }
  // For the code that writes the result after run().
  RunSaver& saver() { return saver_; }
  // The checkpoint that holds the last step whole, if there is one.
  std::optional<std::filesystem::path> last_checkpoint() const { return checkpoints_.last(step_); }

  int64_t global_step() const { return step_; }
  // The step of the weights: with load_best_model_at_end an earlier one, after run().
  int64_t result_step() const { return best_step_.value_or(step_); }
  // The checkpoint that they were loaded from, if they were.
  const std::filesystem::path& best_checkpoint() const { return best_checkpoint_; }
  // The settings as checkpoints keep them.
  const std::string& settings_text() const { return settings_text_; }
  const StepPlan& plan() const { return plan_; }
  // At which rows ended; 0: none.
  int64_t max_length() const { return datasets_.max_length; }
  const data::BatchSampler& sampler() const { return sampler_; }
  // Rank 0: the rows of metrics.jsonl so far.
  std::vector<Json> metrics_rows() const { return log_.rows(); }
  // The state of rank 0; on others the log's history is empty.
  report::TrainerState state() const;
  // Before run(): RunSaver::rehearse(). Collective.
  uint64_t rehearse_save() { return saver_.rehearse(moment()); }
  // Writes a line above the progress bar (rank 0).
  void say(const std::string& line) { log_.say(line); }
  // Once the result is there, which may have waited for room: so may rows of metrics.jsonl (rank
  // 0).
  void catch_up_log() { log_.catch_up(); }

  // Told after every step, before it is logged, of what this rank sent of parameters and gradients
  // during it. One at a time.
  using StepObserver = std::function<void(const comm::SentBytes& sent)>;
  void observe(StepObserver observer) { observer_ = std::move(observer); }

 private:
  struct StepOutcome {
    // By micro-step; this rank's until sum_losses() has summed over all.
    std::vector<double> losses;
    std::vector<Figures> figures;
    int64_t row_tokens = 0;
    LossCounts counts;            // over all ranks
    double loss = 0;              // global
    std::vector<int64_t> broken;  // micro-steps whose loss is not finite
    double gradient_norm = 0;
    double learning_rate = 0;
    bool is_left_out = false;  // bad, by on_nan rollback not learnt from
  };

  // Sums over all ranks, which must stop and save at the same step.
  struct StepCounts {
    double losses = 0, others = 0;  // what the recipe counts
    double row_tokens = 0;
    double is_asked_to_stop = 0, is_asked_to_save = 0;  // ranks
  };

  void set_phase(std::string_view phase);
  bool is_main() const { return world_.rank() == 0; }
  StopRequest stop_request() const;

  // The loop (trainer.cpp).
  void open_events();                        // rank 0
  void open_progress(const Output& output);  // rank 0
  // No step follows: all were taken, or evaluations get no better.
  bool is_done() const { return step_ >= plan_.max_steps || early_stopping_.is_due(); }
  // False: a rank was asked to stop.
  bool train_steps();
  // Nothing when a rank was asked to stop: then no rank computed.
  std::optional<StepOutcome> train_step();
  std::vector<data::MicroBatch> micro_batches(const StepPlan::Window& window) const;
  StepCounts count_step(const std::vector<data::MicroBatch>& batches);
  double learning_rate() const;
  // Sums of the batch over all ranks, and its mean loss.
  void sum_losses(StepOutcome& outcome);
  // Applies the step's gradients, or skips them on every rank alike: when fp16 overflowed, or when
  // the batch is bad and on_nan says rollback. Throws for a bad batch otherwise.
  void update(StepOutcome& outcome);
  // Lets the recipe look at the step. False: it was broken off.
  bool show_step();
  // Evaluates and saves where that is due after the step. False: the evaluation was broken off.
  bool end_step();
  // As in the reference, a run that ends early ends its epoch: what is due then is done.
  void end_epoch_early(const StepOutcome& outcome);
  // A trace that cannot be written is a warning.
  void finish_profile(StepProfile& profile);

  // Saving (trainer.cpp).
  // The state as it is now.
  RunMoment moment() const;
  // Leaves its seconds out of the speed of training.
  void save(void (RunSaver::*how)(const RunMoment&) = &RunSaver::save);
  // At the end: a request that no step was left for. Collective.
  void answer_late_request();
  // Saves what a later run needs to go on.
  void stop();

  // Batches that must not be learnt from (trainer_bad_batches.cpp).
  void leave_out(StepOutcome& outcome, const std::string& why);
  // Rank 0's words for the examples of the step that runs; all of them, or those of the micro-steps
  // whose loss is not finite.
  std::string examples_of(const StepOutcome& outcome) const;
  // A phrase about weights that are not finite, for messages; empty: all are finite. Collective.
  struct WeightsFault {
    std::string text;
    bool is_of_base = false;  // they were so before this run learnt anything
  };
  WeightsFault fault_of_weights();
  // After too many bad batches in a row: restores weights and optimizer from this run's newest
  // checkpoint that was saved before them. Throws when there is none. Collective.
  void roll_back(const std::string& found);

  // Evaluation (trainer_evaluating.cpp).
  // kBest: better than all before by metric_for_best_model. kBrokenOff: a rank was asked to stop
  // meanwhile; a resumed run begins with this evaluation.
  enum class Evaluation { kOrdinary, kBest, kBrokenOff };
  // At the start of a run, before any step, nothing is decided.
  Evaluation evaluate(bool decides = true);
  // What an evaluation of all sets logs. Nothing: broken off, as one of a set is.
  std::optional<Json> evaluate_sets();
  std::optional<EvalSums> evaluate_set(const data::TokenStore& set, Split split,
                                       const StopRequest& asked);
  std::string early_end_line() const;

  // Rows of the log and what the state says (trainer_logging.cpp).
  void account(const StepOutcome& outcome);
  void log_step(const StepOutcome& outcome);
  void log_summary(double seconds);
  // A row of this moment. Of other ranks than 0 nothing.
  void record(Json values, const Json& readings);
  Json machine_readings() const;
  // The time of this run and of those that it continues, loading included. Rank 0.
  double elapsed_seconds() const;
  // Makes elapsed_seconds() continue from the rows of metrics.jsonl. Rank 0.
  void count_on();
  // The reference's estimate: six for each token of the run and weight outside of embeddings.
  double floating_point_operations() const;

  // Restores a checkpoint and continues from its step (trainer_returning.cpp).
  void resume(const std::function<void(const std::string&)>& note);
  void go_on_with_schedule(const Json& progress,
                           const std::function<void(const std::string&)>& note);
  // What progress.json holds, and of it the rows that steps take.
  std::string progress_text() const;
  DataRows data_rows() const;
  // With load_best_model_at_end: loads the best checkpoint's weights for the result. Collective.
  void load_best();

  StepObserver observer_;
  const config::RunConfig& config_;
  std::string settings_text_;
  Trainee& trainee_;
  comm::Group& world_;
  const Datasets& datasets_;
  Recipe& recipe_;
  Status* status_;  // may be null
  std::string rows_content_;
  data::BatchSampler sampler_;
  StepPlan plan_;
  // One of the two: by step, or by the evaluated loss.
  std::function<double(int64_t)> lr_factor_;
  std::optional<optim::MetricSchedule> metric_schedule_;
  std::optional<optim::LossScaler> loss_scaler_;  // fp16
  LossGuard guard_;
  EarlyStopping early_stopping_;
  bool has_learned_ = false;
  report::RunLog log_;
  StepSums sums_;
  report::StepTime step_time_;  // since the last log

  RunCheckpoints checkpoints_;
  RunSaver saver_;
  std::optional<StopSignals> signals_;
  bool is_stopped_ = false;
  bool owes_evaluation_ = false;      // that of the step before was broken off
  std::optional<int64_t> best_step_;  // whose weights were loaded at the end
  std::filesystem::path best_checkpoint_;
  int64_t step_ = 0;
  double seconds_before_ = 0;  // rank 0: of the runs that this one continues from
};

}  // namespace strata::train
