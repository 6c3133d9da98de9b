#include "strata/train/saving/run_checkpoints.h"

#include <algorithm>
#include <random>
#include <system_error>

#include <fmt/format.h>

#include "strata/checkpoint/folders.h"

namespace strata::train {

namespace fs = std::filesystem;

namespace {

// What seen() begins with; where the best one lies follows.
constexpr char kHere = '+', kElsewhere = '-';

}  // namespace

std::string fresh_run_id() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

RunCheckpoints::RunCheckpoints(const config::RunConfig& config)
    : output_dir_(config.train.output_dir),
      total_limit_(config.train.save_total_limit),
      only_model_(config.train.save_only_model),
      best_(config) {}

void RunCheckpoints::go_on(const report::TrainerState& state, const Json& progress) {
  first_step_ = state.global_step;
  run_id_ = progress.value("run", "");
  was_in_doubt_ = progress.value("in_doubt", false);
  best_.load(state);
}

std::string RunCheckpoints::seen(const fs::path& source) const {
  return (is_in_output_dir(source) ? kHere : kElsewhere) + best_.find();
}

std::string RunCheckpoints::note_source(const fs::path& source, const std::string& seen) {
  resumable_ = source;
  resumable_step_ = first_step_;
  is_first_here_ = seen.starts_with(kHere);
  return best_.note_found(seen.substr(1));
}

bool RunCheckpoints::is_in_doubt(int64_t num_bad_in_a_row) const {
  return num_bad_in_a_row > 0 || rollback_limit_ != kNoLimit;
}

checkpoint::Removal RunCheckpoints::start_save(int64_t step, bool in_doubt) {
  // An evaluation that a stop broke off is made up for after the save of its step.
  const auto is_saved = [this](int64_t saved) {
    return saved_steps_.contains(saved) || (is_first_here_ && saved == first_step_);
  };
  best_.note_save(step, best_.step() && is_saved(*best_.step()));
  saved_step_ = step;
  saved_steps_.insert(step);
  return {.is_allowed = !in_doubt, .kept = kept()};
}

std::vector<fs::path> RunCheckpoints::kept() const {
  std::vector<fs::path> kept;
  if (best_.folder()) kept.emplace_back(*best_.folder());
  // None of those that follow could be gone on from.
  if (only_model_ && !resumable_.empty()) kept.push_back(resumable_);
  return kept;
}

bool RunCheckpoints::goes_on_from_newest() const {
  if (!is_first_here_) return false;
  const fs::path newest = checkpoint::candidates("true", output_dir_).front();
  std::error_code missing;
  return fs::equivalent(newest, resumable_, missing);
}

std::vector<fs::path> RunCheckpoints::left_over(std::optional<int64_t> saved_limit) const {
  if (!total_limit_ || !saved_limit || was_in_doubt_ || !goes_on_from_newest()) return {};
  return checkpoint::surplus(output_dir_, std::max(*total_limit_, *saved_limit), kept());
}

void RunCheckpoints::note_end(const checkpoint::SaveOutcome& outcome) {
  if (outcome.failure.empty()) return;
  const int64_t failed = checkpoint::step_of(outcome.folder);
  if (saved_step_ == failed) saved_step_ = -1;
  saved_steps_.erase(failed);
  best_.note_failure(failed);
}

std::optional<fs::path> RunCheckpoints::last(int64_t step) const {
  if (saved_step_ != step) return std::nullopt;
  return checkpoint::folder_of(output_dir_, step);
}

bool RunCheckpoints::is_requested(const fs::path& folder) const {
  return checkpoint::step_of(folder) == asked_step_;
}

void RunCheckpoints::note_resumable(int64_t step) {
  const auto saved = last(step);
  if (!saved) return;
  resumable_ = *saved;
  resumable_step_ = step;
}

int64_t RunCheckpoints::num_at_once(int64_t num_saves) const {
  if (!total_limit_) return num_saves;
  // Later ones, of another run, do not count.
  const int64_t present = std::ranges::count_if(
      checkpoint::list(output_dir_),
      [this](const fs::path& path) { return checkpoint::step_of(path) <= first_step_; });
  // Beside the newest, whatever the limit, stay the best one, and the one that the run went on from
  // where those of this run cannot be gone on from.
  const int64_t best = best_.metric().empty() ? 0 : 1;
  const int64_t resumable = only_model_ && is_in_output_dir(resumable_) ? 1 : 0;
  // An old one goes only after the new one is there.
  const int64_t most = std::max<int64_t>(*total_limit_, 1 + best + resumable) + 1;
  return std::min(num_saves, std::max<int64_t>(most - present, 1));
}

bool RunCheckpoints::is_own(const fs::path& checkpoint) const {
  const int64_t step = checkpoint::step_of(checkpoint);
  if (saved_steps_.contains(step)) return true;
  if (step > first_step_) return false;  // of an earlier run, or of a branch that was given up
  try {
    const std::string run = read_json_file(checkpoint / "progress.json").value("run", "");
    return !run.empty() && run == run_id_;
  } catch (const std::exception&) {
    return true;  // it is damaged: named when it is tried
  }
}

bool RunCheckpoints::is_in_output_dir(const fs::path& checkpoint) const {
  std::error_code missing;
  const fs::path parent = checkpoint.has_parent_path() ? checkpoint.parent_path() : fs::path(".");
  return fs::exists(checkpoint, missing) && fs::equivalent(parent, output_dir_, missing);
}

int64_t RunCheckpoints::step_of(const fs::path& checkpoint) const {
  return checkpoint == resumable_ ? resumable_step_ : checkpoint::step_of(checkpoint);
}

int64_t RunCheckpoints::rollback_limit(int64_t first_bad) const {
  return std::min(first_bad, rollback_limit_);
}

std::vector<fs::path> RunCheckpoints::ways_back(int64_t first_bad) const {
  if (only_model_) return {};
  const int64_t limit = rollback_limit(first_bad);
  std::vector<fs::path> found;
  for (const fs::path& folder : checkpoint::list(output_dir_)) {
    if (step_of(folder) < limit && is_own(folder)) found.insert(found.begin(), folder);
  }
  if (resumable_.empty() || resumable_step_ >= limit) return found;
  std::error_code ignored;
  const bool is_found = std::ranges::any_of(
      found, [&](const fs::path& folder) { return fs::equivalent(folder, resumable_, ignored); });
  if (!is_found) found.push_back(resumable_);
  return found;
}

void RunCheckpoints::note_return(const fs::path& source) { rollback_limit_ = step_of(source); }

std::optional<fs::path> RunCheckpoints::only_one_kept() const {
  if (total_limit_ != 1 || !best_.folder() || is_best_damaged_) return std::nullopt;
  const fs::path best = *best_.folder();
  // What lies in the folder of another run, from which this one went on, is not this run's.
  if (!is_in_output_dir(best)) return std::nullopt;
  return best;
}

}  // namespace strata::train
