// The part of Trainer that deals with batches whose loss or gradient is no number, or far off:
// which they were, and whether they are left out, end the run, or take it back to a checkpoint.
#include <algorithm>
#include <cmath>

#include "strata/base/error.h"
#include "strata/base/phases.h"
#include "strata/comm/told_once.h"
#include "strata/train/loop/broken_weight.h"
#include "strata/train/loop/trainer.h"
#include "strata/train/saving/resume.h"

namespace strata::train {

namespace fs = std::filesystem;

namespace {

constexpr size_t kNamedRows = 64;

}  // namespace

Trainer::WeightsFault Trainer::fault_of_weights() {
  const auto broken = find_broken_weight(*trainee_.store);
  if (!broken) return {};
  const std::string& model = config_.model.model_name_or_path;
  const std::string what = fmt::format("{} in tensor {}", broken->value, broken->text());
  // An update that is not finite is never made, but values may grow beyond their type.
  if (has_learned_ && !broken->is_frozen) {
    return {.text = fmt::format("; by now the weights hold {}", what)};
  }
  return {.text = fmt::format("; {} holds {}", model.empty() ? "the model" : model, what),
          .is_of_base = true};
}

void Trainer::leave_out(StepOutcome& outcome, const std::string& why) {
  outcome.is_left_out = true;
  // A spike comes of finite weights.
  const bool is_finite = std::isfinite(outcome.loss) && std::isfinite(outcome.gradient_norm);
  const WeightsFault fault = is_finite ? WeightsFault() : fault_of_weights();
  const std::string found =
      fmt::format("step {}: found {}, in {}{}", step_ + 1, why, examples_of(outcome), fault.text);
  if (config_.train.on_nan == config::OnNan::kStop) {
    // Every rank comes here with the same words.
    const std::string advice =
        fault.is_of_base
            ? ": neither the rows nor learning_rate is at fault; use another copy of the model, or "
              "repair that tensor"
            : fmt::format(
                  "; the weights are those of step {}: lower learning_rate or look at the "
                  "data, then resume from the last checkpoint, or set on_nan to rollback",
                  step_);
    comm::all_or_nothing_told_once(world_, "training", [&] { throw Error(found + advice); });
  }
  if (guard_.num_in_a_row() >= LossGuard::kMostInARow) {
    roll_back(found);
    return;
  }
  say("warning: " + found + "; weights and optimizer stay as they were, the batch is left out");
}

std::string Trainer::examples_of(const StepOutcome& outcome) const {
  const StepPlan::Window window = plan_.window(step_);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < window.count; ++i) {
    if (!outcome.broken.empty() && !std::ranges::count(outcome.broken, i)) continue;
    for (int rank = 0; rank < trainee_.store->mesh().data_parallel_size(); ++rank) {
      const auto batch = sampler_.batch(window.epoch, rank, window.first + i);
      rows.insert(rows.end(), batch.begin(), batch.end());
    }
  }
  std::ranges::sort(rows);
  // A step of hundreds of ranks has thousands, of which a person looks at a few.
  const size_t named = std::min(rows.size(), kNamedRows);
  const std::string rest =
      named < rows.size() ? fmt::format(" and {} more", rows.size() - named) : "";
  return fmt::format(
      "row{} {}{} of the training data (from 0, as prepared)", rows.size() == 1 ? "" : "s",
      fmt::join(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(named), ", "), rest);
}

void Trainer::roll_back(const std::string& found) {
  const int64_t first_bad = step_ + 2 - LossGuard::kMostInARow;
  const std::string what =
      fmt::format("{}, and the {} batches before were bad too, so that the weights must be", found,
                  LossGuard::kMostInARow - 1);
  saver_.settle();
  std::optional<fs::path> source;
  if (saver_.saves()) {
    source = return_to([&] { return checkpoints_.ways_back(first_bad); }, trainee_,
                       [this](const report::TrainerState&, const Json& progress) {
                         guard_.load(progress.at("loss_guard"));
                         has_learned_ = progress.value("has_learned", false);
                         if (loss_scaler_ && progress.contains("loss_scaler")) {
                           loss_scaler_->return_to(progress.at("loss_scaler"));
                         }
                       },
                       [this](const std::string& line) { say(line); });
  }
  comm::all_or_nothing_told_once(world_, "training", [&] {
    if (source) return;
    throw Error(fmt::format(
        "{}, expected a whole checkpoint of before step {} to return to; lower learning_rate, save "
        "more often (save_steps), and start again",
        what, checkpoints_.rollback_limit(first_bad)));
  });
  guard_.forgive();
  checkpoints_.note_return(*source);
  recipe_.begin(step_);
  set_phase(kTrainingPhase);
  say(fmt::format(
      "warning: {}; weights and optimizer are those of {} again, the batches since then "
      "are left out",
      what, source->filename().string()));
}

}  // namespace strata::train
