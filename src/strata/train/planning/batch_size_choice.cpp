#include "strata/train/planning/batch_size_choice.h"

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/checkpoint/folders.h"
#include "strata/comm/agreement.h"
#include "strata/memory/plan_text.h"
#include "strata/train/planning/planned_room.h"

namespace strata::train {
namespace {

// That of the checkpoint from which the run goes on; empty where none says it, or none can be read,
// which resuming itself will tell.
std::optional<int64_t> saved_rows(const config::TrainConfig& config) {
  if (config.resume_from_checkpoint.empty()) return std::nullopt;
  try {
    const auto folders = checkpoint::candidates(config.resume_from_checkpoint, config.output_dir);
    const Json state = read_json_file(folders.at(0) / "trainer_state.json");
    if (!state.contains("train_batch_size")) return std::nullopt;
    return state.at("train_batch_size").get<int64_t>();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Not a single row fits.
OutOfMemoryError shortage(int64_t planned, int64_t room, int64_t without_evaluation) {
  return OutOfMemoryError(
      "auto_find_batch_size: found {} planned for a single row, expected at most {}; {}",
      memory::size_text(planned), memory::size_text(room),
      without_evaluation <= room
          ? "lower per_device_eval_batch_size, without evaluation it would fit"
          : "strata plan --device_memory names settings that take less");
}

}  // namespace

BatchSizeChoice choose_batch_size(int64_t limit, int64_t bytes,
                                  const std::function<int64_t(int64_t rows)>& plan) {
  BatchSizeChoice best;
  const auto fits = [&](int64_t rows) {
    const int64_t needed = plan(rows);
    if (needed <= bytes || best.planned_bytes == 0) best.planned_bytes = needed;
    if (needed <= bytes) best.rows = rows;
    return needed <= bytes;
  };
  if (!fits(1) || limit == 1 || fits(limit)) return best;
  // Invariant: `low` fits, `high` does not.
  for (int64_t low = 1, high = limit; high - low > 1;) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return best;
}

std::string choose_batch_size(config::RunConfig& config, const comm::Mesh& mesh, at::Device device,
                              int64_t room,
                              const std::function<PlanRequest(const config::RunConfig&)>& request) {
  const int64_t limit = config.train.per_device_train_batch_size;
  const auto planned = [&](config::RunConfig tried, int64_t rows) {
    tried.train.per_device_train_batch_size = rows;
    return needed_bytes(plan_run(tried, request(tried)), device);
  };
  std::string answer, text;
  comm::all_or_nothing(*mesh.world, "choosing the batch size", [&] {
    if (mesh.world->rank() != 0) return;
    const std::optional<int64_t> saved = saved_rows(config.train);
    if (saved && *saved >= 1 && *saved <= limit && planned(config, *saved) <= room) {
      answer = std::to_string(*saved);
      text = fmt::format("batch size: {}, as in the checkpoint", counted(*saved, "row"));
      return;
    }
    const BatchSizeChoice choice =
        choose_batch_size(limit, room, [&](int64_t rows) { return planned(config, rows); });
    if (choice.rows == 0) {
      config::RunConfig trains_only = config;
      trains_only.train.eval_strategy = config::Interval::kNo;
      trains_only.train.eval_on_start = false;
      throw shortage(choice.planned_bytes, room, planned(trains_only, 1));
    }
    answer = std::to_string(choice.rows);
    text = fmt::format(
        "batch size: {} of {} rows ({} planned of {}); an update sees {}", choice.rows, limit,
        memory::size_text(choice.planned_bytes), memory::size_text(room),
        choice.rows * mesh.data_parallel_size() * config.train.gradient_accumulation_steps);
    if (saved) text += fmt::format("; the checkpoint's {} do not fit", *saved);
  });
  config.train.per_device_train_batch_size =
      std::stoll(comm::broadcast_string(*mesh.world, answer));
  return text;
}

}  // namespace strata::train
