// The part of Trainer that goes on from a checkpoint: of an earlier run, or of the best evaluation
// for the result. And what a checkpoint says for that.
#include "strata/adapters/lora_init.h"
#include "strata/base/json.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/piece_reader.h"
#include "strata/comm/agreement.h"
#include "strata/launch/restarts.h"
#include "strata/train/loop/trainer.h"
#include "strata/train/saving/resume.h"
#include "strata/train/split_loader.h"

namespace strata::train {

namespace fs = std::filesystem;

void Trainer::resume(const std::function<void(const std::string&)>& note) {
  const fs::path source = train::resume(
      config_.train, settings_text_, trainee_,
      [this, &note](const report::TrainerState& state, const Json& progress) {
        if (progress.contains("base_fingerprint")) {
          const std::string unknown = checkpoint::require_base(
              "resume_from_checkpoint", progress.at("base_fingerprint").get<std::string>(),
              config_.model.model_name_or_path, trainee_.base_fingerprint,
              trainee_.adapter && adapters::changes_base(trainee_.adapter->options()));
          if (!unknown.empty()) note("warning: " + unknown);
        }
        step_ = state.global_step;
        if (is_main()) log_.go_on(state.log_history);
        sums_.go_on(progress);
        if (metric_schedule_) go_on_with_schedule(progress, note);
        if (loss_scaler_ && progress.contains("loss_scaler")) {
          loss_scaler_->load(progress.at("loss_scaler"));
        }
        guard_.load(progress.at("loss_guard"));
        has_learned_ = progress.value("has_learned", false);
        owes_evaluation_ = progress.value("evaluation_due", false);
        for (const std::string& line : different_rows(data_rows(), progress)) note(line);
        checkpoints_.go_on(state, progress);
        early_stopping_.load(state);
      },
      note);
  std::string seen;
  comm::all_or_nothing(world_, "looking at the checkpoint that is resumed", [&] {
    if (is_main()) seen = checkpoints_.seen(source);
  });
  seen = comm::broadcast_string(world_, seen);
  if (const std::string lost = checkpoints_.note_source(source, seen); !lost.empty()) note(lost);
  if (checkpoints_.run_id().empty()) {
    checkpoints_.begin_anew(comm::broadcast_string(world_, fresh_run_id()));
  }
  comm::all_or_nothing(world_, "comparing with the run that is resumed", [&] {
    if (!is_main()) return;
    for (const std::string& line : resume_lines(source, step_, plan_.max_steps, settings_text_)) {
      note(line);
    }
  });
}

void Trainer::go_on_with_schedule(const Json& progress,
                                  const std::function<void(const std::string&)>& note) {
  const std::string& type = config_.optim.lr_scheduler_type;
  const auto saved = progress.find("lr_schedule");
  // Older checkpoints do not say which one it was.
  if (saved != progress.end() && saved->value("type", type) == type) {
    return metric_schedule_->load(*saved);
  }
  note(
      fmt::format("warning: resume_from_checkpoint: found no state of lr_scheduler_type {}, "
                  "expected that of a run that had it; the schedule starts again at a learning "
                  "rate of {}",
                  type, metric_schedule_->learning_rate()));
}

std::string Trainer::progress_text() const {
  Json progress = to_json(data_rows());
  progress.update({{"run", checkpoints_.run_id()},
                   {"num_tokens", sums_.num_tokens()},
                   {"log_window", sums_.window()},
                   {"totals", sums_.totals()},
                   {"loss_guard", guard_.state()},
                   {"has_learned", has_learned_}});
  if (!trainee_.base_fingerprint.empty()) {
    progress["base_fingerprint"] = trainee_.base_fingerprint;
  }
  if (const auto launched = launch::launch_time()) progress[checkpoint::kLaunchKey] = *launched;
  if (owes_evaluation_) progress["evaluation_due"] = true;
  if (checkpoints_.is_in_doubt(guard_.num_in_a_row())) progress["in_doubt"] = true;
  if (metric_schedule_) progress["lr_schedule"] = metric_schedule_->state();
  if (loss_scaler_) progress["loss_scaler"] = loss_scaler_->state();
  return dump_python(progress) + "\n";
}

DataRows Trainer::data_rows() const {
  return {.per_step = plan_.accumulation * config_.train.per_device_train_batch_size *
                      trainee_.store->mesh().data_parallel_size(),
          .count = static_cast<int64_t>(datasets_.train.size()),
          .wanted = rows_of_stream(config_, trainee_.store->mesh().data_parallel_size()),
          .seed = static_cast<int64_t>(config_.train.data_seed.value_or(config_.train.seed)),
          .content = rows_content_};
}

void Trainer::load_best() {
  if (!config_.train.load_best_model_at_end) return;
  const BestCheckpoint& best = checkpoints_.best();
  // What memory holds is better than all that was saved.
  if (const auto value = best.unsaved_value(step_)) {
    say(fmt::format(
        "the result is the model of the last step, the best by {} ({}), which no checkpoint holds",
        best.metric(), python_float_repr(*value)));
    return;
  }
  // A save that failed has been told of, and its folder is not there.
  const bool is_there = is_main() && best.folder() && fs::exists(*best.folder());
  const fs::path folder = comm::broadcast_string(world_, is_there ? *best.folder() : std::string());
  if (folder.empty()) {
    say("warning: load_best_model_at_end: found no best checkpoint, expected one of an evaluation; "
        "the result is the model of the last step");
    return;
  }
  if (!checkpoints_.last(step_)) {
    // The last step's weights are in memory alone: a load that breaks off would spoil them.
    const auto damage = comm::shared_failure(saver_.patient_group(), [&] {
      if (is_main()) checkpoint::PieceReader(folder).verify_all();
    });
    if (damage) {
      checkpoints_.note_damaged_best();
      say(fmt::format(
          "warning: load_best_model_at_end: {}; the result is the model of the last step",
          *damage));
      return;
    }
  }
  load_weights(
      folder, trainee_,
      [this](const report::TrainerState&, const Json& progress) {
        has_learned_ = progress.value("has_learned", false);
      },
      checkpoints_.last(step_) ? fmt::format("the last step is complete in checkpoint-{}", step_)
                               : "");
  best_step_ = checkpoint::step_of(folder);
  best_checkpoint_ = folder;
  report::TrainerState found;
  best.fill(found);
  say(fmt::format("the result is the model of {}, the best by {} ({})", folder.filename().string(),
                  best.metric(), python_float_repr(found.best_metric.value_or(0))));
}

}  // namespace strata::train
