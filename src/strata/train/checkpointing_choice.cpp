#include "strata/train/checkpointing_choice.h"

#include <algorithm>
#include <array>
#include <sstream>

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/base/resident_memory.h"
#include "strata/comm/agreement.h"
#include "strata/launch/machine_report.h"
#include "strata/memory/device_probe.h"
#include "strata/memory/plan_text.h"
#include "strata/memory/probe.h"
#include "strata/train/device.h"

namespace strata::train {
namespace {

// From the one that keeps least to the one that keeps most, in the order of the time that a byte
// saves: attention over long documents, then products, then what is cheap to compute again.
constexpr std::array<const char*, 4> kModes = {"full", "attention", "selective", "none"};

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

// What one rank may take of where it computes.
int64_t room_of_rank(at::Device device, int local_world_size) {
  constexpr double kPart = 0.9;
  if (device.is_cuda()) {
    const int sharing = (local_world_size + count_gpus() - 1) / std::max(count_gpus(), 1);
    return static_cast<int64_t>(kPart * static_cast<double>(memory::device_memory(device).free)) /
           std::max(sharing, 1);
  }
  const launch::MemoryFacts facts = launch::read_memory({});
  uint64_t bytes = facts.available_bytes;
  if (!facts.room_folder.empty()) bytes = std::min(bytes, facts.room_bytes);
  // The plan counts what the process has by now.
  return static_cast<int64_t>(kPart * static_cast<double>(bytes)) / local_world_size +
         resident_bytes();
}

int64_t peak_of(const RunPlan& plan, at::Device device) {
  if (device.is_cuda()) {
    return plan.memory.peak.peak_bytes + plan.scratch_bytes + memory::kGpuWorkspaceBytes;
  }
  return memory::peak_bytes(plan.memory.peak,
                            resident_bytes() + memory::kWarmUpBytes + plan.scratch_bytes);
}

}  // namespace

bool chooses_checkpointing(const config::ShardConfig& config) {
  return config.gradient_checkpointing && config.checkpointing_mode == "auto";
}

std::string checkpointing_text(const config::ShardConfig& config) {
  if (!config.gradient_checkpointing) return "none";
  if (config.checkpointing_layers == 0) return config.checkpointing_mode;
  return fmt::format("{} in the first {} layers, {} in the others", config.checkpointing_mode,
                     config.checkpointing_layers, config.checkpointing_rest);
}

void CheckpointingChoice::apply(config::ShardConfig& config) const {
  config.gradient_checkpointing = mode != "none";
  config.checkpointing_mode = mode == "none" ? "full" : mode;
  config.checkpointing_layers = layers;
  config.checkpointing_rest = layers > 0 ? rest : "none";
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

std::string choose_checkpointing(config::RunConfig& config, const comm::Mesh& mesh,
                                 at::Device device, const PlanRequest& request) {
  const std::string& given = config.shard.checkpointing_memory;
  // The least of all ranks.
  const at::Tensor room =
      at::full({1},
               given.empty() ? -static_cast<double>(room_of_rank(device, request.local_world_size))
                             : -static_cast<double>(parse_byte_size(given)),
               at::kDouble);
  mesh.world->all_reduce(room, comm::Reduction::kMax)->wait();
  const auto bytes = static_cast<int64_t>(-room.item<double>());

  std::string answer, text;
  comm::all_or_nothing(*mesh.world, "choosing activation checkpointing", [&] {
    if (mesh.world->rank() != 0) return;
    const CheckpointingChoice choice =
        choose_checkpointing(config, bytes, [&](const config::RunConfig& tried) {
          const RunPlan plan = plan_run(tried, request);
          return PlannedPeak{peak_of(plan, device), num_recomputed(plan)};
        });
    answer = fmt::format("{} {} {}", choice.mode, choice.layers, choice.rest);
    text = choice.fits
               ? fmt::format("activation checkpointing: {} ({} planned of {})", choice.text(),
                             memory::size_text(choice.planned_bytes), memory::size_text(bytes))
               : fmt::format(
                     "warning: gradient_checkpointing_mode auto: found {} planned with everything "
                     "recomputed, expected at most {}; strata plan --device_memory names settings "
                     "that take less",
                     memory::size_text(choice.planned_bytes), memory::size_text(bytes));
  });
  answer = comm::broadcast_string(*mesh.world, answer);
  std::istringstream words(answer);
  CheckpointingChoice choice;
  words >> choice.mode >> choice.layers >> choice.rest;
  choice.apply(config.shard);
  return text;
}

}  // namespace strata::train
