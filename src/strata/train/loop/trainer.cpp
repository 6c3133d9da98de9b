#include "strata/train/loop/trainer.h"

#include <cmath>
#include <cstdlib>

#include "strata/base/error.h"
#include "strata/base/phases.h"
#include "strata/checkpoint/folders.h"
#include "strata/comm/agreement.h"
#include "strata/comm/told_once.h"
#include "strata/config/checks/reporting_checks.h"
#include "strata/data/collate.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"
#include "strata/optim/adamw.h"
#include "strata/train/loop/micro_pass.h"
#include "strata/train/loop/schedules.h"
#include "strata/train/loop/step_profile.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A warning where the last loss is far above the first; empty: it is not.
std::string risen_loss(const std::vector<Json>& history, double learning_rate) {
  std::vector<double> losses;
  for (const Json& row : history) {
    if (row.contains("loss") && row["loss"].is_number())
      losses.push_back(row["loss"].get<double>());
  }
  constexpr double kTimes = 2, kLeast = 1;  // less is noise
  if (losses.size() < 2 || losses.back() < kTimes * losses.front() ||
      losses.back() < losses.front() + kLeast) {
    return "";
  }
  return fmt::format(
      "warning: learning_rate: found {:.4g}, with which the loss rose from {:.4g} to {:.4g}, "
      "expected it to fall: the result is worse than the model it started from; lower it",
      learning_rate, losses.front(), losses.back());
}

void note_earlier_checkpoints(const fs::path& output_dir, std::vector<std::string>& notes) {
  const std::vector<fs::path> found = checkpoint::list(output_dir);
  if (found.empty()) return;
  notes.push_back(fmt::format(
      "warning: output_dir: found {} of an earlier run, this one starts from the beginning; "
      "resume_from_checkpoint true continues it, another output_dir keeps the two apart (here "
      "save_total_limit removes those whose steps this run has passed)",
      found.back().string()));
}

void note_earlier_result(const fs::path& output_dir, std::vector<std::string>& notes) {
  for (const char* name : {hf::kModelWeightsFile, hf::kModelIndexFile, hf::kAdapterWeightsFile}) {
    if (!fs::exists(output_dir / name)) continue;
    notes.push_back(
        fmt::format("warning: output_dir: found {} of an earlier run, which this run's result "
                    "replaces; another output_dir keeps the two apart",
                    (output_dir / name).string()));
  }
}

}  // namespace

Trainer::Trainer(const config::RunConfig& config, const std::string& settings_text,
                 Trainee& trainee, const Datasets& datasets, Recipe& recipe, const Saving& saving,
                 const Output& output)
    : config_(config),
      settings_text_(settings_text),
      trainee_(trainee),
      world_(*trainee.store->mesh().world),
      datasets_(datasets),
      recipe_(recipe),
      status_(output.status),
      rows_content_(datasets.train.content()),
      sampler_(
          training_sampler(config, datasets.train, trainee.store->mesh().data_parallel_size())),
      plan_(plan_steps(config.train, sampler_.batches_per_rank())),
      lr_factor_(lr_schedule(config.optim, plan_.max_steps)),
      metric_schedule_(metric_schedule(config)),
      loss_scaler_(loss_scaler(config.shard)),
      guard_(config.train.max_loss_spike),
      early_stopping_(config.train),
      checkpoints_(config),
      saver_(config, settings_text_, trainee, checkpoints_,
             {.group = saving.group,
              .writes_result = saving.writes_result,
              .say = [this](const std::string& line) { say(line); }}) {
  std::vector<std::string> notes;
  if (!config.train.resume_from_checkpoint.empty()) {
    resume([&notes](const std::string& line) { notes.push_back(line); });
  } else {
    checkpoints_.begin_anew(comm::broadcast_string(world_, fresh_run_id()));
    if (is_main()) note_earlier_checkpoints(config.train.output_dir, notes);
    if (is_main() && saving.writes_result) note_earlier_result(config.train.output_dir, notes);
  }
  const std::optional<int64_t> resumed = step_ > 0 ? std::optional<int64_t>(step_) : std::nullopt;
  comm::all_or_nothing(world_, "opening metrics.jsonl", [&] {
    if (!is_main()) return;
    notes.push_back(
        log_.open_metrics(fs::path(config.train.output_dir) / "metrics.jsonl", resumed));
    if (resumed) count_on();
    if (saving.writes_result && config::reports_to_tensorboard(config.train)) open_events();
  });
  if (is_main()) open_progress(output);
  for (const std::string& note : notes) say(note);
  saver_.finish_last_save();
  saver_.prepare(plan_, step_, datasets);
}

void Trainer::open_events() {
  const char* common = std::getenv("TENSORBOARD_LOGGING_DIR");
  fs::path folder = config_.train.logging_dir;
  if (folder.empty() && common != nullptr) folder = common;
  if (folder.empty()) folder = report::tensorboard_folder(config_.train.output_dir);
  log_.open_events(folder);
}

void Trainer::open_progress(const Output& output) {
  log_.open_progress(output.write, {.total_steps = plan_.max_steps,
                                    .first_step = step_,
                                    .is_terminal = output.is_terminal,
                                    .shows_steps = !config_.train.disable_tqdm,
                                    .unicode = output.unicode,
                                    .columns = output.columns});
}

Trainer::~Trainer() = default;

void Trainer::set_phase(std::string_view phase) {
  if (status_ != nullptr) status_->set_phase(phase);
}

double Trainer::run() {
  const Clock::time_point start = Clock::now();
  sums_.start(start);
  set_phase(kTrainingPhase);
  if (config_.train.eval_on_start && step_ == 0) evaluate(/*decides=*/false);
  // No rank is in its first step while a request still ends another at once.
  world_.barrier();
  signals_.emplace(/*tells=*/is_main());
  if (!train_steps()) {
    stop();
    return 0;
  }
  signals_->note_end_of_training();
  answer_late_request();
  // Whoever was asked to stop meanwhile is not killed in the middle of it.
  set_phase(fmt::format("{} the last checkpoint", kSavingPhase));
  saver_.settle();
  if (step_ < plan_.max_steps) say(early_end_line());
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  log_summary(seconds);
  say(risen_loss(log_.history(), config_.optim.learning_rate));
  load_best();
  log_.settle();
  log_.finish();
  return sums_.mean_loss();
}

bool Trainer::train_steps() {
  if (std::exchange(owes_evaluation_, false) && !end_step()) return false;
  while (!is_done()) {
    saver_.poll();
    if (status_ != nullptr) status_->set_step(step_ + 1);
    const comm::SentBytes sent = comm::sent_bytes(trainee_.store->mesh());
    std::optional<StepProfile> profile;
    if (is_main() && step_ + 1 == config_.train.profile_step) {
      profile.emplace(trainee_.store->options().device);
    }
    std::optional<StepOutcome> outcome = train_step();
    if (profile) finish_profile(*profile);
    if (!outcome) return false;
    ++step_;
    if (observer_) observer_(comm::sent_bytes(trainee_.store->mesh()) - sent);
    if (!outcome->is_left_out) account(*outcome);
    if (should_log(plan_, config_.train, step_) && sums_.has_unlogged()) log_step(*outcome);
    if (!show_step() || !end_step()) return false;
    if (early_stopping_.is_due() && !plan_.ends_epoch(step_)) end_epoch_early(*outcome);
  }
  return true;
}

void Trainer::finish_profile(StepProfile& profile) {
  try {
    profile.finish(fs::path(config_.train.output_dir) / "profile.json");
  } catch (const std::exception& error) {
    say(fmt::format("warning: {}; training goes on", error.what()));
  }
}

bool Trainer::show_step() {
  if (recipe_.end_step(step_, stop_request())) return true;
  owes_evaluation_ = should_evaluate(plan_, config_.train, step_);
  return false;
}

StopRequest Trainer::stop_request() const {
  return signals_ ? [this] { return signals_->is_requested(); } : StopRequest();
}

bool Trainer::end_step() {
  bool saves = should_save(plan_, config_.train, step_);
  if (should_evaluate(plan_, config_.train, step_)) {
    const Evaluation found = evaluate();
    if (found == Evaluation::kBrokenOff) return false;
    saves |= found == Evaluation::kBest && config_.train.save_strategy == config::Interval::kBest;
  }
  if (saves) save();
  return true;
}

void Trainer::end_epoch_early(const StepOutcome& outcome) {
  if (config_.train.logging_strategy == config::Interval::kEpoch && sums_.has_unlogged()) {
    log_step(outcome);
  }
  // For the last step end_step() has done so.
  const bool is_saved = checkpoints_.last(step_).has_value();
  if (config_.train.save_strategy == config::Interval::kEpoch && !is_saved) save();
}

RunMoment Trainer::moment() const {
  return {.step = step_,
          .has_learned = has_learned_,
          .num_bad_in_a_row = guard_.num_in_a_row(),
          .state_files = [this] {
            return checkpoint::SmallFiles{
                {"trainer_state.json", report::trainer_state_text(state())},
                {"progress.json", progress_text()}};
          }};
}

void Trainer::save(void (RunSaver::*how)(const RunMoment&)) {
  set_phase(fmt::format("{} checkpoint-{}", kSavingPhase, step_));
  const Clock::time_point start = Clock::now();
  (saver_.*how)(moment());
  set_phase(kTrainingPhase);
  sums_.leave_out(Clock::now() - start);
}

void Trainer::answer_late_request() {
  double asked[1] = {saver_.is_asked() ? 1.0 : 0.0};
  comm::sum_over_ranks(world_, asked);
  if (asked[0] > 0 && step_ > checkpoints_.first_step()) save(&RunSaver::save_on_request);
}

void Trainer::stop() {
  is_stopped_ = true;
  set_phase(fmt::format("{} checkpoint-{}", kSavingPhase, step_));
  const auto outcome = saver_.save_to_stop(moment());
  log_.settle();
  saver_.report(outcome, /*must_hold=*/true);
  say(fmt::format(
      "stopped on request after step {}: checkpoint-{} is saved, resume with "
      "--resume_from_checkpoint true{}",
      step_, step_,
      owes_evaluation_ ? ", which begins with the evaluation that was broken off" : ""));
  log_.finish();
}

std::vector<data::MicroBatch> Trainer::micro_batches(const StepPlan::Window& window) const {
  const ActivityTimer timer(Activity::kData);
  std::vector<data::MicroBatch> batches;
  const int rank = trainee_.store->mesh().data_parallel_rank();
  for (int64_t i = 0; i < window.count; ++i) {
    const std::vector<int64_t> rows = sampler_.batch(window.epoch, rank, window.first + i);
    batches.push_back(
        data::collate_rows(datasets_.train, rows, trainee_.model->decoder_start_id()));
  }
  return batches;
}

double Trainer::learning_rate() const {
  if (metric_schedule_) return metric_schedule_->learning_rate();
  // As in the reference, a skipped step does not move the schedule on.
  const int64_t skipped = loss_scaler_ ? loss_scaler_->num_skipped() : 0;
  return config_.optim.learning_rate * lr_factor_(step_ - skipped);
}

Trainer::StepCounts Trainer::count_step(const std::vector<data::MicroBatch>& batches) {
  StepCounts counts;
  if (signals_ && signals_->is_requested()) counts.is_asked_to_stop = 1;
  if (saver_.is_asked()) counts.is_asked_to_save = 1;
  for (const data::MicroBatch& batch : batches) {
    if (!trainee_.store->mesh().counts_rows()) break;
    const LossCounts of_batch = recipe_.count(batch);
    counts.losses += of_batch.losses;
    counts.others += of_batch.others;
    for (int64_t tokens : batch.row_tokens) counts.row_tokens += static_cast<double>(tokens);
  }
  double values[] = {counts.losses, counts.others, counts.row_tokens, counts.is_asked_to_stop,
                     counts.is_asked_to_save};
  comm::sum_over_ranks(world_, values);
  return {values[0], values[1], values[2], values[3], values[4]};
}

std::optional<Trainer::StepOutcome> Trainer::train_step() {
  const report::StepTime::Scope timed(step_time_);
  StepOutcome outcome;
  const std::vector<data::MicroBatch> batches = micro_batches(plan_.window(step_));
  const StepCounts counts = count_step(batches);
  if (counts.is_asked_to_stop > 0) return std::nullopt;
  // Before the first step of this run there is nothing to save.
  if (counts.is_asked_to_save > 0 && step_ > checkpoints_.first_step()) {
    const report::StepTime::Pause pause(step_time_);
    save(&RunSaver::save_on_request);
  }
  outcome.counts = {.losses = counts.losses, .others = counts.others};
  outcome.row_tokens = static_cast<int64_t>(counts.row_tokens);

  for (size_t i = 0; i < batches.size(); ++i) {
    MicroPass pass = train_batch(config_, trainee_, recipe_, batches[i],
                                 {.step = step_,
                                  .micro_step = i,
                                  .micro_steps = batches.size(),
                                  .counts = outcome.counts,
                                  .loss_scale = loss_scaler_ ? loss_scaler_->scale() : 1});
    outcome.losses.push_back(pass.loss);
    outcome.figures.push_back(std::move(pass.figures));
  }
  update(outcome);
  return outcome;
}

void Trainer::update(StepOutcome& outcome) {
  const ActivityTimer timer(Activity::kUpdate);
  sum_losses(outcome);
  const double loss_scale = loss_scaler_ ? loss_scaler_->scale() : 1;
  outcome.gradient_norm = optim::global_gradient_norm(*trainee_.store) / loss_scale;
  outcome.learning_rate = learning_rate();
  // A gradient beyond fp16 is the loss scale's matter.
  const bool overflow = loss_scaler_ && !std::isfinite(outcome.gradient_norm);
  if (const auto why = guard_.judge(outcome.loss, overflow ? 0 : outcome.gradient_norm)) {
    leave_out(outcome, *why);
    return;
  }
  checkpoints_.note_good_batch();
  if (!overflow) {
    const double clip = optim::clip_factor(outcome.gradient_norm, config_.optim.max_grad_norm);
    trainee_.optimizer->step(outcome.learning_rate, clip / loss_scale);
    trainee_.executor->parameters_changed();
    has_learned_ |= outcome.learning_rate > 0 && outcome.gradient_norm > 0;
  }
  if (!loss_scaler_) return;
  try {
    loss_scaler_->update(overflow);
  } catch (const Error& error) {  // on every rank
    comm::all_or_nothing_told_once(world_, "training", [&] { throw error; });
  }
}

void Trainer::sum_losses(StepOutcome& outcome) {
  sum_over_ranks(world_, outcome.losses, outcome.figures);
  double loss = 0;
  for (size_t i = 0; i < outcome.losses.size(); ++i) {
    if (!std::isfinite(outcome.losses[i])) outcome.broken.push_back(static_cast<int64_t>(i));
    loss += outcome.losses[i];
  }
  // As in the reference: what a prompt predicts beyond the rows' own targets is in the sum, not in
  // the count.
  outcome.loss = loss / std::max(outcome.counts.losses, 1.0) + loss_in_figures(outcome.figures);
}

}  // namespace strata::train
