// The part of Trainer that saves: what must hold before the first step, saves, and the stop on
// request.
#include <chrono>

#include "strata/base/error.h"
#include "strata/checkpoint/folders.h"
#include "strata/comm/agreement.h"
#include "strata/train/preflight.h"
#include "strata/train/trainer.h"

namespace strata::train {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void Trainer::prepare_saving(comm::Group& saving) {
  if (config_.train.save_strategy == "no") return;
  const fs::path folder = config_.train.output_dir;
  optim::Optimizer* optimizer = config_.train.save_only_model ? nullptr : trainee_.optimizer.get();
  SavePlan plan{.checkpoint_bytes = checkpoint_bytes(trainee_, optimizer != nullptr),
                .result_bytes = result_bytes(trainee_),
                .num_checkpoints = count_saves(plan_, config_.train, step_)};
  comm::all_or_nothing(world_, "looking for room to save", [&] {
    if (!is_main()) return;
    if (const auto limit = config_.train.save_total_limit) {
      // An old one goes only after the new one is there.
      const auto present = static_cast<int64_t>(checkpoint::list(folder).size());
      plan.num_checkpoints =
          std::min(plan.num_checkpoints, std::max<int64_t>(*limit + 1 - present, 1));
    }
    require_disk_space(folder, plan);
  });
  // What rests in files does so because memory has no room for it, nor for a copy.
  const bool rests_in_files = trainee_.store->file() != nullptr;
  checkpoint::SaverOptions options{.in_background = config_.train.async_save && !rests_in_files,
                                   .total_limit = config_.train.save_total_limit};
  if (options.in_background) {
    const uint64_t free = available_memory_bytes();
    at::Tensor short_of = at::full({1}, free > 0 && free < plan.checkpoint_bytes ? 1 : 0, at::kInt);
    world_.all_reduce(short_of, comm::Reduction::kMax)->wait();
    if (short_of.item<int>() != 0) {
      options.in_background = false;
      say(
          fmt::format("async_save: found less memory than a copy of the state takes ({} bytes), "
                      "saving while training waits",
                      plan.checkpoint_bytes));
    }
  }
  saver_ = std::make_unique<checkpoint::Saver>(*trainee_.store, optimizer, saving, options);
}

void Trainer::save() {
  set_phase(fmt::format("saving checkpoint-{}", step_));
  const Clock::time_point start = Clock::now();
  report_save(saver_->wait(), /*must_hold=*/false);
  checkpoint::SaveRequest request{
      .output_dir = config_.train.output_dir,
      .step = step_,
      .num_updates = trainee_.optimizer->num_steps(),
      .small_files = {{"trainer_state.json", report::trainer_state_text(state())},
                      {"progress.json", progress_text()},
                      {"settings.json", settings_text_}}};
  std::vector<fs::path> keep;
  if (const auto best = state().best_model_checkpoint) keep.push_back(*best);
  saver_->save(std::move(request), keep);
  saved_step_ = step_;
  set_phase("training");
  speed_since_ += std::chrono::duration_cast<Clock::duration>(Clock::now() - start);
}

void Trainer::report_save(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_hold) {
  if (!outcome || outcome->failure.empty()) return;
  const std::string message =
      fmt::format("{} was not saved: {}", outcome->folder.filename().string(), outcome->failure);
  if (must_hold) throw IoError(message);
  say("warning: " + message + "; earlier checkpoints are as they were, training goes on");
}

void Trainer::stop() {
  is_stopped_ = true;
  if (saver_) {
    if (saved_step_ != step_) save();
    report_save(saver_->wait(), /*must_hold=*/true);
    say(
        fmt::format("stopped on request after step {}: checkpoint-{} is saved, resume with "
                    "--resume_from_checkpoint true",
                    step_, step_));
  } else {
    say(fmt::format("stopped on request after step {}; save_strategy is no, nothing is saved",
                    step_));
  }
  if (progress_) progress_->finish();
}

}  // namespace strata::train
