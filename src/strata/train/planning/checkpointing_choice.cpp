#include "strata/train/planning/checkpointing_choice.h"

#include <algorithm>
#include <array>
#include <sstream>

#include <fmt/format.h>

#include "strata/comm/agreement.h"
#include "strata/memory/plan_text.h"
#include "strata/train/planning/planned_room.h"

namespace strata::train {
namespace {

using config::Checkpointing;

// From the one that keeps least to the one that keeps most, in the order of the time that a byte
// saves: attention over long documents, then products, then what is cheap to compute again.
constexpr std::array kModes = {Checkpointing::kFull, Checkpointing::kAttention,
                               Checkpointing::kSelective, Checkpointing::kNone};

CheckpointingChoice choice_at(int rung, int num_layers) {
  const int stage = std::min(rung / num_layers, static_cast<int>(kModes.size()) - 2);
  const int behind = rung - stage * num_layers;
  CheckpointingChoice choice;
  choice.num_layers = num_layers;
  choice.mode = kModes[static_cast<size_t>(behind == num_layers ? stage + 1 : stage)];
  choice.rest = kModes[static_cast<size_t>(stage + 1)];
  choice.layers = num_layers - behind;
  if (behind == 0 || behind == num_layers) choice.layers = 0;
  return choice;
}

PlanPeak peak_with(const PlanRequest& request, at::Device device) {
  return [&request, device](const config::RunConfig& tried) {
    const RunPlan plan = plan_run(tried, request);
    return PlannedPeak{needed_bytes(plan, device), num_recomputed(plan)};
  };
}

}  // namespace

bool chooses_checkpointing(const config::ShardConfig& config) {
  return config.gradient_checkpointing && config.checkpointing_mode == Checkpointing::kAuto;
}

std::string checkpointing_text(const config::ShardConfig& config) {
  if (!config.gradient_checkpointing) return "none";
  if (config.checkpointing_layers == 0) return fmt::format("{}", config.checkpointing_mode);
  return fmt::format("{} in the first {} layers, {} in the others", config.checkpointing_mode,
                     config.checkpointing_layers, config.checkpointing_rest);
}

void CheckpointingChoice::apply(config::ShardConfig& config) const {
  config.gradient_checkpointing = mode != Checkpointing::kNone;
  config.checkpointing_mode = mode == Checkpointing::kNone ? Checkpointing::kFull : mode;
  config.checkpointing_layers = layers;
  config.checkpointing_rest = layers > 0 ? rest : Checkpointing::kNone;
}

std::string CheckpointingChoice::text() const {
  if (layers == 0) return fmt::format("{} in all {} layers", mode, num_layers);
  return fmt::format("{} in the first {} of {} layers, {} in the others", mode, layers, num_layers,
                     rest);
}

CheckpointingChoice choose_checkpointing(const config::RunConfig& config, int64_t bytes,
                                         const PlanPeak& plan) {
  const auto planned = [&](CheckpointingChoice choice) {
    config::RunConfig chosen = config;
    choice.apply(chosen.shard);
    const PlannedPeak peak = plan(chosen);
    choice.planned_bytes = peak.bytes;
    choice.fits = peak.bytes <= bytes;
    choice.num_layers = std::max(choice.num_layers, peak.num_recomputed + 1);
    return choice;
  };
  // The layer before the head is never recomputed alone (shard/schedule.cpp), but counts.
  CheckpointingChoice best = planned(choice_at(0, 1));
  const int num_layers = best.num_layers;
  int low = 0, high = num_layers * (static_cast<int>(kModes.size()) - 1);
  if (!best.fits) return best;
  // Invariant: `low` fits, what is beyond `high` does not.
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    const CheckpointingChoice tried = planned(choice_at(middle, num_layers));
    if (tried.fits) {
      low = middle;
      best = tried;
    } else {
      high = middle - 1;
    }
  }
  return best;
}

std::optional<std::string> recomputation_hint(const config::RunConfig& config, int64_t bytes,
                                              const PlanPeak& plan) {
  const config::ShardConfig& set = config.shard;
  const bool recomputes_all = set.gradient_checkpointing &&
                              set.checkpointing_mode == Checkpointing::kFull &&
                              set.checkpointing_layers == 0;
  if (!recomputes_all) return std::nullopt;
  if (set.activation_offloading != config::ActivationOffloading::kFalse) return std::nullopt;
  for (const Checkpointing mode : {Checkpointing::kNone, Checkpointing::kAttention}) {
    config::RunConfig tried = config;
    CheckpointingChoice{.mode = mode}.apply(tried.shard);
    const PlannedPeak peak = plan(tried);
    if (peak.bytes > bytes) continue;
    return fmt::format(
        "hint: --gradient_checkpointing_mode auto would recompute {} here ({} planned of {})",
        mode == Checkpointing::kNone ? "nothing" : "less", memory::size_text(peak.bytes),
        memory::size_text(bytes));
  }
  return std::nullopt;
}

std::optional<std::string> recomputation_hint(const config::RunConfig& config, at::Device device,
                                              int num_sharers, const PlanRequest& request) {
  if (!device.is_cuda()) return std::nullopt;
  try {
    return recomputation_hint(config, free_room(device, num_sharers), peak_with(request, device));
  } catch (const std::exception&) {  // a run does not depend on its plan
    return std::nullopt;
  }
}

std::string choose_checkpointing(config::RunConfig& config, const comm::Mesh& mesh,
                                 at::Device device, int64_t room, const PlanRequest& request) {
  std::string answer, text;
  comm::all_or_nothing(*mesh.world, "choosing activation checkpointing", [&] {
    if (mesh.world->rank() != 0) return;
    const CheckpointingChoice choice =
        choose_checkpointing(config, room, peak_with(request, device));
    answer = fmt::format("{} {} {}", choice.mode, choice.layers, choice.rest);
    text = choice.fits
               ? fmt::format("activation checkpointing: {} ({} planned of {})", choice.text(),
                             memory::size_text(choice.planned_bytes), memory::size_text(room))
               : fmt::format(
                     "warning: gradient_checkpointing_mode auto: found {} planned with everything "
                     "recomputed, expected at most {}; strata plan --device_memory names settings "
                     "that take less",
                     memory::size_text(choice.planned_bytes), memory::size_text(room));
  });
  std::istringstream words(comm::broadcast_string(*mesh.world, answer));
  CheckpointingChoice choice;
  std::string mode, rest;
  words >> mode >> choice.layers >> rest;
  choice.mode = config::value_named<Checkpointing>(mode).value();
  choice.rest = config::value_named<Checkpointing>(rest).value();
  choice.apply(config.shard);
  return text;
}

}  // namespace strata::train
