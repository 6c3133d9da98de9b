#include "strata/train/saving/run_saver.h"

#include <charconv>

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/save_request.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/setting_text.h"
#include "strata/comm/agreement.h"
#include "strata/comm/told_once.h"
#include "strata/config/recipes.h"
#include "strata/train/saving/checkpoint_contents.h"
#include "strata/train/saving/results.h"
#include "strata/train/saving/resume.h"
#include "strata/train/saving/saving_policy.h"
#include "strata/train/setup/adapter_settings.h"

namespace strata::train {

namespace fs = std::filesystem;

namespace {

uint64_t size_of_folder(const fs::path& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

// What a save cost: "training stood still" is what its user feels.
std::string saved_line(const checkpoint::SaveOutcome& outcome) {
  const double megabytes = static_cast<double>(outcome.size_bytes) / 1e6;
  std::string line = fmt::format(
      "{} is saved: {:.1f} MB of rank 0 in {:.3f} s; training paused for {:.3f} s",
      outcome.folder.filename().string(), megabytes, outcome.seconds, outcome.stall.whole);
  if (outcome.stall.copying > 0) {
    line += fmt::format(" ({:.3f} s of it the copy to host memory", outcome.stall.copying);
    if (outcome.stall.waiting > 0.001) {
      line += fmt::format(", {:.3f} s for the save before", outcome.stall.waiting);
    }
    line += ")";
  }
  return line;
}

std::string unsaved_line(const checkpoint::SaveOutcome& outcome) {
  return fmt::format("{} was not saved: {}", outcome.folder.filename().string(), outcome.failure);
}

std::string asked_line(int64_t step) {
  return fmt::format("saved checkpoint-{} (requested by SIGUSR2)", step);
}

}  // namespace

RunSaver::RunSaver(const config::RunConfig& config, const std::string& settings_text,
                   Trainee& trainee, RunCheckpoints& checkpoints, Options options)
    : config_(config),
      settings_text_(settings_text),
      trainee_(trainee),
      world_(*trainee.store->mesh().world),
      checkpoints_(checkpoints),
      options_(std::move(options)) {}

void RunSaver::prepare(const StepPlan& plan, int64_t step, const Datasets& datasets) {
  const SavingPolicy policy = saving_policy(config_);
  optim::Optimizer* optimizer = policy.with_optimizer ? trainee_.optimizer.get() : nullptr;
  const checkpoint::FrozenWeights frozen = frozen_weights_of(trainee_, policy.in_whole_files);
  if (policy.saves && policy.in_whole_files) whole_files_ = whole_files_of(trainee_);
  if (policy.saves || options_.writes_result) {
    comm::all_or_nothing(world_, "reading the files next to the model", [&] {
      if (!is_main()) return;
      companions_ = companion_files(config_, trainee_, datasets);
      const fs::path& source = checkpoints_.resumable();
      if (source.empty()) return;
      if (config::recipe_of(config_).reads_labels) require_same_labels(source, companions_);
      for (const std::string& line : different_tokenizer(source, companions_)) options_.say(line);
    });
  }
  if (trainee_.adapter && is_main()) second_names_ = second_names_of(*trainee_.adapter);
  require_room_on_disk(plan, step, frozen);
  if (options_.writes_result) require_memory_for_result();
  if (!policy.saves) return;
  checkpoint::SaverOptions options{.in_background = policy.in_background,
                                   .total_limit = config_.train.save_total_limit,
                                   .frozen = frozen};
  if (options.in_background) options.in_background = has_room_for_copies(optimizer);
  saver_ = std::make_unique<checkpoint::Saver>(*trainee_.store, optimizer, options_.group, options);
}

std::vector<fs::path> RunSaver::find_left_over() const {
  const fs::path settings = checkpoints_.resumable() / "settings.json";
  if (!fs::is_regular_file(settings)) return {};  // another tool's
  const std::string limit = checkpoint::setting_text(
      parse_json(read_file(settings), settings.string()), "save_total_limit");
  int64_t kept = 0;
  const auto [end, error] = std::from_chars(limit.data(), limit.data() + limit.size(), kept);
  const bool is_limited = error == std::errc() && end == limit.data() + limit.size();
  return checkpoints_.left_over(is_limited ? std::optional(kept) : std::nullopt);
}

void RunSaver::finish_last_save() {
  if (checkpoints_.resumable().empty()) return;
  bool is_newest = false;
  std::vector<fs::path> left;
  try {
    if (is_main()) is_newest = checkpoints_.goes_on_from_newest();
    if (is_newest) left = find_left_over();
  } catch (const std::exception& error) {  // a disk that cannot be looked at removes nothing
    options_.say(fmt::format("warning: {}", error.what()));
  }
  double count[1] = {static_cast<double>(left.size())};
  comm::broadcast_numbers(world_, count);
  // As after a save: only the loss of the next step would show that weights are spoilt.
  double bad[1] = {0};
  if (count[0] > 0) {
    const auto pieces = checkpoint::local_pieces(*trainee_.store, nullptr);
    bad[0] = checkpoint::not_finite(pieces).empty() ? 0 : 1;
    comm::sum_over_ranks(world_, bad);
  }
  if (!is_newest) return;
  if (bad[0] > 0) left.clear();
  fs::path newest;
  try {
    // By its own name, whatever was named to continue from it, and whatever step it is of.
    newest = checkpoint::candidates("true", config_.train.output_dir).front();
    checkpoint::finish_save(newest, left);
  } catch (const std::exception& error) {
    options_.say(fmt::format("warning: {}", error.what()));
    return;
  }
  for (const fs::path& folder : left) {
    options_.say(
        fmt::format("{} is removed (save_total_limit): the run that saved {} was ended before that",
                    folder.filename().string(), newest.filename().string()));
  }
}

void RunSaver::require_room_on_disk(const StepPlan& steps, int64_t step,
                                    const checkpoint::FrozenWeights& frozen) {
  // Rows of the log are in every trainer_state.json. Who names steps without end means to stop
  // early.
  constexpr int64_t kRowBytes = 512, kMostRows = 20'000;
  const int64_t rows = steps.max_steps / std::max<int64_t>(steps.logging_steps, 1) + 1;
  const auto beside = static_cast<uint64_t>(std::min(rows, kMostRows) * kRowBytes);
  uint64_t companions = 0;
  for (const auto& [name, content] : companions_) companions += content.size();
  const uint64_t beside_weights =
      beside + settings_text_.size() + second_names_.size() + companions;
  SavePlan plan{.num_checkpoints = count_saves(steps, config_.train, step)};
  plan.stop_bytes = checkpoint_bytes(trainee_, /*with_optimizer=*/true, frozen) + beside_weights;
  if (plan.num_checkpoints > 0) {
    plan.checkpoint_bytes =
        saving_policy(config_).with_optimizer
            ? plan.stop_bytes
            : checkpoint_bytes(trainee_, /*with_optimizer=*/false, frozen) + beside_weights;
  }
  // The log once more in the report, and in metrics.jsonl.
  if (options_.writes_result) {
    result_bytes_ = train::result_bytes(trainee_, result_type(config_, trainee_)) + companions +
                    3 * beside + settings_text_.size();
    plan.result_bytes = result_bytes_;
  }
  // The largest of the files of a checkpoint and of the result.
  const uint64_t parts =
      saving_policy(config_).in_whole_files ? 1 : trainee_.store->mesh().shard->size();
  const uint64_t largest =
      std::max((plan.num_checkpoints > 0 ? plan.checkpoint_bytes : 0) / parts,
               std::min(plan.result_bytes, parse_byte_size(config_.train.max_shard_size)));
  comm::all_or_nothing(world_, "looking for room to save", [&] {
    if (!is_main()) return;
    const fs::path folder = config_.train.output_dir;
    plan.num_checkpoints = checkpoints_.num_at_once(plan.num_checkpoints);
    require_disk_space(folder, plan);
    // Most runs are never asked to: no reason to refuse them.
    if (const auto warning = shortage_for_stop(folder, plan)) options_.say(*warning);
    if (const auto warning = file_size_warning(largest)) options_.say(*warning);
  });
}

void RunSaver::require_memory_for_result() {
  const auto shortage =
      find_shortage(gather_copy_memory(copy_memory(result_memory_bytes(trainee_)), world_),
                    "gathered part of the result", "gathered parts of the result");
  comm::all_or_nothing_told_once(world_, "looking for memory", [&] {
    if (!shortage) return;
    throw OutOfMemoryError(
        "memory: found {}; free memory there or use more machines, so that the result can be "
        "written",
        *shortage);
  });
}

bool RunSaver::has_room_for_copies(optim::Optimizer* optimizer) {
  const uint64_t own = checkpoint::Saver::snapshot_bytes(*trainee_.store, optimizer);
  const auto shortage = find_shortage(gather_copy_memory(copy_memory(own), world_));
  if (!shortage) return true;
  options_.say(fmt::format("async_save: found {}; saving while training waits", *shortage));
  return false;
}

std::optional<checkpoint::SaveOutcome> RunSaver::start(const fs::path& output_dir,
                                                       checkpoint::Removal removal,
                                                       const RunMoment& moment) {
  std::vector<at::Tensor> weights;
  if (trainee_.adapter) {
    weights = checkpoint::projection_weights(*trainee_.store, *trainee_.adapter);
  }
  checkpoint::SaveRequest request{
      .output_dir = output_dir,
      .step = moment.step,
      .num_updates = trainee_.optimizer->num_steps(),
      .whole = whole_files_,
      .trained = moment.has_learned ? checkpoint::Trained::kYes : checkpoint::Trained::kNotYet};
  return saver_->save(std::move(request), std::move(removal), [&](checkpoint::SaveRequest& own) {
    own.derived = checkpoint::projected_prefix(*trainee_.store, weights);
    add_small_files(own, moment);
  });
}

void RunSaver::add_small_files(checkpoint::SaveRequest& request, const RunMoment& moment) const {
  if (!is_main()) return;
  // So that a checkpoint tells the whole model when the base, or the tokenizer, is not at hand.
  request.small_files = companions_;
  if (!second_names_.empty()) request.small_files[checkpoint::kSecondNames] = second_names_;
  for (auto& [name, content] : moment.state_files()) {
    request.small_files[name] = std::move(content);
  }
  request.small_files["settings.json"] = settings_text_;
}

void RunSaver::save(const RunMoment& moment) {
  const bool is_in_doubt = checkpoints_.is_in_doubt(moment.num_bad_in_a_row);
  // Which checkpoint is the best one, and which there are, is known only when the save before is
  // durable, or failed.
  if (is_in_doubt || !checkpoints_.best().metric().empty()) settle();
  checkpoint::Removal removal = checkpoints_.start_save(moment.step, is_in_doubt);
  report(start(config_.train.output_dir, std::move(removal), moment), /*must_hold=*/false);
}

void RunSaver::poll() {
  if (!saver_) return;
  if (const auto ended = saver_->poll()) tell(*ended);
}

void RunSaver::settle() {
  if (saver_) report(saver_->wait(), /*must_hold=*/false);
}

void RunSaver::tell(const checkpoint::SaveOutcome& outcome) {
  if (outcome.failure.empty()) {
    options_.say(saved_line(outcome));
    if (checkpoints_.is_requested(outcome.folder)) {
      options_.say(asked_line(checkpoint::step_of(outcome.folder)));
    }
  } else {
    options_.say("warning: " + unsaved_line(outcome) +
                 "; earlier checkpoints are as they were, training goes on");
  }
  if (!outcome.leftover.empty()) options_.say("warning: " + outcome.leftover);
}

void RunSaver::report(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_hold) {
  if (!outcome) return;
  if (must_hold) {
    comm::all_or_nothing_told_once(world_, "saving", [&] {
      if (!outcome->failure.empty()) throw IoError(unsaved_line(*outcome));
    });
  }
  if (!outcome->is_told) tell(*outcome);
  checkpoints_.note_end(*outcome);
}

comm::Group& RunSaver::patient_group() {
  return saver_ && saver_->has_lost_group() ? world_ : options_.group;
}

std::unique_ptr<checkpoint::Saver> RunSaver::take_whole_saver() {
  // A save of this step may have failed in the background, on which all ranks agree only now.
  settle();
  if (saver_ && !config_.train.save_only_model) return nullptr;
  checkpoints_.forget_last();
  auto whole = std::make_unique<checkpoint::Saver>(
      *trainee_.store, trainee_.optimizer.get(), patient_group(),
      checkpoint::SaverOptions{
          .in_background = false,
          .total_limit = config_.train.save_total_limit,
          .frozen = frozen_weights_of(trainee_, /*in_whole_files=*/whole_files_.has_value())});
  return std::exchange(saver_, std::move(whole));
}

bool RunSaver::is_asked() { return is_asked_ |= take_save_request(); }

void RunSaver::save_on_request(const RunMoment& moment) {
  std::unique_ptr<checkpoint::Saver> own = take_whole_saver();
  if (checkpoints_.last(moment.step)) {
    options_.say(asked_line(moment.step));
  } else {
    save(moment);
    checkpoints_.note_request(moment.step);
    poll();
  }
  if (config_.train.save_only_model) {
    settle();
    checkpoints_.note_resumable(moment.step);
  }
  if (own) saver_ = std::move(own);
  // A launcher's signal reaches one rank later than another: this checkpoint is what it asks for.
  is_asked_ = false;
  take_save_request();
}

std::optional<checkpoint::SaveOutcome> RunSaver::save_to_stop(const RunMoment& moment) {
  take_whole_saver();
  if (!checkpoints_.last(moment.step)) save(moment);
  return saver_->wait();
}

uint64_t RunSaver::rehearse(const RunMoment& moment) {
  // A name that an interrupted run's next start removes.
  const fs::path folder = fs::path(config_.train.output_dir) / "checkpoint-rehearsal.tmp-0";
  const auto remove = [&] {
    std::error_code ignored;
    if (is_main()) fs::remove_all(folder, ignored);
  };
  uint64_t bytes = 0;
  try {
    start(folder, {}, moment);
    const auto outcome = saver_->wait();
    if (!outcome->failure.empty()) {
      throw IoError(fmt::format("rehearsal of a checkpoint: {}", outcome->failure));
    }
    if (!outcome->leftover.empty()) options_.say("warning: rehearsal: " + outcome->leftover);
    if (is_main()) bytes = size_of_folder(folder);
  } catch (...) {
    remove();
    throw;
  }
  remove();
  return bytes;
}

void RunSaver::remove_all_but_best() {
  const auto kept = checkpoints_.only_one_kept();
  if (!kept) return;
  try {
    checkpoint::keep_only(*kept);
  } catch (const IoError& error) {  // the result is written: more on the disk is no failure
    options_.say(fmt::format("warning: {}", error.what()));
  }
}

}  // namespace strata::train
