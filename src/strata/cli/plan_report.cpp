#include "strata/cli/plan_report.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "strata/base/byte_size.h"
#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/resident_memory.h"
#include "strata/cli/plan_changes.h"
#include "strata/config/derived.h"
#include "strata/config/describe.h"
#include "strata/launch/plan.h"
#include "strata/memory/accelerate_estimate.h"
#include "strata/memory/deepspeed_estimate.h"
#include "strata/memory/device_probe.h"
#include "strata/memory/plan_text.h"
#include "strata/memory/probe.h"
#include "strata/train/loop/schedules.h"
#include "strata/train/planning/batch_size_choice.h"
#include "strata/train/planning/checkpointing_choice.h"
#include "strata/train/planning/plan.h"
#include "strata/train/planning/planned_room.h"

namespace strata::cli {
namespace {

int num_nodes(const config::RunConfig& config) {
  return config.plan.nodes > 0 ? config.plan.nodes : std::max(config.launch.num_machines, 1);
}

PlannedPlace place_of(const config::RunConfig& config) {
  const config::PlanConfig& plan = config.plan;
  PlannedPlace place{};
  place.nodes = num_nodes(config);
  place.world_size = planned_world_size(config);
  if (place.world_size % place.nodes != 0) {
    throw ConfigError("world_size: found {} on {} nodes, expected a multiple of the nodes",
                      place.world_size, place.nodes);
  }
  place.is_cuda = plan.device == config::PlanDevice::kCuda ||
                  (plan.device == config::PlanDevice::kAuto && !plan.device_memory.empty() &&
                   !config.launch.cpu);
  place.process_bytes =
      place.is_cuda ? memory::kCudaContextBytes : resident_bytes() + memory::kWarmUpBytes;
  if (!plan.device_memory.empty()) {
    try {
      place.available = static_cast<int64_t>(parse_memory_size(plan.device_memory));
    } catch (const ConfigError&) {
      throw ConfigError("device_memory: found \"{}\", expected a size like 80GB or 24GiB",
                        plan.device_memory);
    }
  }
  return place;
}

// A launcher divides the cores among the ranks of a machine, and what libraries keep beside a
// product depends on their threads. Where OMP_NUM_THREADS is set, this program has as many as a
// rank.
void use_threads_of_a_rank(const config::RunConfig& config, const PlannedPlace& place) {
  static const launch::MachineFacts machine = launch::inspect_machine({});
  static const int own = at::get_num_threads();
  const int of_rank =
      launch::threads_of_rank(config.launch, machine, place.world_size / place.nodes);
  const bool is_told = config.launch.num_cpu_threads_per_process > 0;
  if (!is_told && machine.has_omp_num_threads) return;
  at::set_num_threads(is_told ? of_rank : std::min(of_rank, own));
}

train::RunPlan plan_at(const config::RunConfig& config, const PlannedPlace& place,
                       int64_t most_bytes = std::numeric_limits<int64_t>::max()) {
  use_threads_of_a_rank(config, place);
  train::PlanRequest request;
  request.most_bytes = most_bytes;
  request.world_size = place.world_size;
  request.local_world_size = place.world_size / place.nodes;
  request.on_device = place.is_cuda;
  return train::plan_run(config, request);
}

std::string head(const config::RunConfig& config, const PlannedPlace& place,
                 const train::RunPlan& plan) {
  const auto& train = config.train;
  std::string text = fmt::format(
      "model        {} parameters, {} trained ({:.2f} %), {}\n", plan.num_parameters,
      plan.num_trained,
      100.0 * static_cast<double>(plan.num_trained) / static_cast<double>(plan.num_parameters),
      counted(plan.units.size(), "unit"));
  text += fmt::format("ranks        {} on {}, {}: {} x {}; {}, computing in {}\n", place.world_size,
                      counted(place.nodes, "node"), config.shard.sharding_strategy,
                      counted(plan.shard_size, "shard"), counted(plan.replicas, "replica"),
                      place.is_cuda ? "cuda" : "cpu",
                      plan.compute_type == at::kFloat  ? "fp32"
                      : plan.compute_type == at::kHalf ? "fp16"
                                                       : "bf16");
  if (!plan.assumed_ints.empty()) {
    text += fmt::format(
        "assumed      {} of every matrix in integers: config.json announces other forms, too, and "
        "the files would tell whose\n",
        plan.assumed_ints);
  }
  const std::string shared =
      plan.sequence_size == 1 ? "" : fmt::format(" shared by {} ranks", plan.sequence_size);
  text +=
      fmt::format("micro-batch  {}, {}{}; {} per update; {}\n",
                  counted(train.per_device_train_batch_size, "row"), counted(plan.tokens, "token"),
                  shared, counted(train.gradient_accumulation_steps, "micro-step"),
                  config.shard.gradient_checkpointing
                      ? "activation checkpointing: " + train::checkpointing_text(config.shard)
                      : "activations are kept");
  const auto& shard = config.shard;
  const bool wants_host = shard.offload_params ||
                          shard.offload_param_device == config::OffloadDevice::kCpu ||
                          shard.offload_optimizer_device == config::OffloadDevice::kCpu ||
                          shard.activation_offloading == config::ActivationOffloading::kTrue;
  if (!place.is_cuda && wants_host) {
    text += "offload      to host memory changes nothing here: the CPU computes in it\n";
  }
  return text;
}

std::optional<int64_t> peak_with(const std::vector<const PlanChange*>& applied,
                                 const config::RunConfig& config, const PlannedPlace& place) {
  config::RunConfig changed = config;
  PlannedPlace changed_place = place;
  for (const PlanChange* change : applied) {
    if (!change->apply(changed, changed_place)) return std::nullopt;
  }
  try {
    const int64_t most = changed_place.available.value_or(std::numeric_limits<int64_t>::max());
    const train::RunPlan plan = plan_at(changed, changed_place, most);
    return memory::peak_bytes(plan.memory.peak, changed_place.process_bytes + plan.scratch_bytes);
  } catch (const ConfigError&) {
    return std::nullopt;  // not with this model, such as codes over GPT-2's matrices
  }
}

// Requires: place.available.
std::string nearest(const config::RunConfig& config, const PlannedPlace& place) {
  const std::vector<PlanChange> all = plan_changes();
  std::string text;
  bool keeps_training = false;  // one that fits does
  const auto consider = [&](std::vector<const PlanChange*> applied) {
    const auto peak = peak_with(applied, config, place);
    if (!peak || *peak > *place.available) return;
    std::string names;
    for (const PlanChange* change : applied) names += (names.empty() ? "" : " and ") + change->text;
    text += fmt::format("  {:>11}  with {}\n", memory::size_text(*peak), names);
    keeps_training |= std::ranges::all_of(applied, &PlanChange::keeps_training);
  };
  for (const PlanChange& change : all) consider({&change});
  // Two at a time where one is not enough, or where one would train something else.
  for (size_t i = 0; !keeps_training && i < all.size(); ++i) {
    for (size_t j = i + 1; all[i].keeps_training && j < all.size(); ++j) {
      if (all[j].keeps_training) consider({&all[i], &all[j]});
    }
  }
  for (size_t i = 0; text.empty() && i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) consider({&all[i], &all[j]});
  }
  return text.empty() ? "  no one or two changes of settings make it fit; use many more "
                        "ranks\n"
                      : text;
}

// Where what no setting makes smaller is too large; empty: it is not. Requires: place.available.
std::string too_small_for_runtime(const PlannedPlace& place, const train::RunPlan& plan) {
  const int64_t fixed = place.process_bytes + plan.scratch_bytes;
  if (fixed < *place.available) return "";
  return fmt::format(
      "  nothing: {} {} before a model is loaded; use one with more memory, or correct "
      "--device_memory\n",
      place.is_cuda ? "CUDA's runtime takes" : "the program takes", memory::size_text(fixed));
}

int64_t needed_bytes(const PlannedPlace& place, const train::RunPlan& plan) {
  return memory::peak_bytes(plan.memory.peak, place.process_bytes + plan.scratch_bytes);
}

// The room by which a run of these settings would choose: what the user says of a rank's memory,
// else that of this machine.
int64_t room_of(const config::RunConfig& config, const PlannedPlace& place) {
  if (!config.shard.memory_budget.empty()) {
    return static_cast<int64_t>(parse_byte_size(config.shard.memory_budget));
  }
  if (place.available) return *place.available / 10 * 9;
  if (!place.is_cuda) return train::free_room(at::kCPU, place.world_size / place.nodes);
  throw ConfigError(
      "{}: found no memory of a GPU by which to choose, expected it; add --device_memory 80GB",
      config.train.auto_find_batch_size ? "auto_find_batch_size"
                                        : "gradient_checkpointing_mode auto");
}

train::PlanPeak peak_at(const PlannedPlace& place) {
  return [&place](const config::RunConfig& tried) {
    const train::RunPlan plan = plan_at(tried, place);
    return train::PlannedPeak{needed_bytes(place, plan), train::num_recomputed(plan)};
  };
}

std::string verdict(const config::RunConfig& config, const PlannedPlace& place,
                    const train::RunPlan& plan) {
  if (!place.available) return "";
  const int64_t needed = needed_bytes(place, plan);
  if (needed <= *place.available) {
    const std::optional<std::string> hint =
        train::recomputation_hint(config, room_of(config, place), peak_at(place));
    return fmt::format("fits         {} of {} ({:.0f} %)\n{}", memory::size_text(needed),
                       memory::size_text(*place.available),
                       100.0 * static_cast<double>(needed) / static_cast<double>(*place.available),
                       hint ? *hint + "\n" : "");
  }
  const std::string hopeless = too_small_for_runtime(place, plan);
  return fmt::format("does not fit {} needed, {} available; what would fit:\n{}",
                     memory::size_text(needed), memory::size_text(*place.available),
                     hopeless.empty() ? nearest(config, place) : hopeless);
}

// What the run would choose by its plan.
config::RunConfig with_choices(const config::RunConfig& config, const PlannedPlace& place) {
  const bool finds_rows = config.train.auto_find_batch_size;
  if (!finds_rows && !train::chooses_checkpointing(config.shard)) return config;
  const int64_t room = room_of(config, place);
  config::RunConfig chosen = config;
  int64_t& rows = chosen.train.per_device_train_batch_size;
  if (finds_rows) {
    const auto planned = [&](int64_t tried_rows) {
      config::RunConfig tried = config;
      tried.train.per_device_train_batch_size = tried_rows;
      return needed_bytes(place, plan_at(tried, place));
    };
    // Where not even one fits the plan says so.
    rows = std::max<int64_t>(train::choose_batch_size(rows, room, planned).rows, 1);
  }
  if (!train::chooses_checkpointing(config.shard)) return chosen;
  train::choose_checkpointing(chosen, room, peak_at(place)).apply(chosen.shard);
  return chosen;
}

bool rests_in_files(MemoryKind kind, const config::ShardConfig& shard) {
  if (kind == MemoryKind::kParameters)
    return shard.offload_param_device == config::OffloadDevice::kNvme;
  if (kind == MemoryKind::kOptimizer)
    return shard.offload_optimizer_device == config::OffloadDevice::kNvme;
  return kind == MemoryKind::kKeptInputs &&
         shard.activation_offloading == config::ActivationOffloading::kDisk;
}

// Beside an accelerator the copy of a save is in host memory; on a CPU it is in the tables.
std::string elsewhere_lines(const memory::Amounts& amounts, const config::ShardConfig& shard) {
  const int64_t copy = amounts[MemoryKind::kSnapshot];
  const std::string saving =
      copy == 0 ? ""
                : fmt::format(
                      "saving       {} of host memory for the copy that is written while "
                      "training goes on (async_save)\n",
                      memory::size_text(copy));
  if (amounts.total() == copy) return saving;
  std::string text =
      fmt::format("offloaded    {} of this rank:", memory::size_text(amounts.total() - copy));
  for (int k = 1; k < kNumMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    if (amounts[kind] == 0 || kind == MemoryKind::kSnapshot) continue;
    text += fmt::format(" {} {} in {},", memory::name_of(kind), memory::size_text(amounts[kind]),
                        rests_in_files(kind, shard) ? "files" : "host memory");
  }
  text.back() = '\n';
  return text + saving;
}

std::string wire_line(const comm::SentBytes& sent) {
  std::string text =
      fmt::format("wire         {} sent by a rank per update", memory::size_text(sent.total()));
  const std::pair<const char*, int64_t> groups[] = {{"inside its shard group", sent.shard},
                                                    {"between replicas", sent.replicate},
                                                    {"inside its part group", sent.part},
                                                    {"inside its sequence group", sent.sequence}};
  if (sent.shard < sent.total()) {
    for (const auto& [where, bytes] : groups) {
      if (bytes > 0) text += fmt::format(", {} {}", memory::size_text(bytes), where);
    }
  }
  return text + '\n';
}

// Neighbouring units of one size in one line.
std::string unit_text(const std::vector<train::UnitFacts>& units) {
  std::string text;
  for (size_t i = 0; i < units.size();) {
    size_t last = i;
    while (last + 1 < units.size() && units[last + 1].numel == units[i].numel) ++last;
    const std::string names = last == i ? units[i].name : units[i].name + " .. " + units[last].name;
    text += fmt::format("  {:<40} {:>12} parameters each, {} at rest on a rank\n", names,
                        units[i].numel, memory::size_text(units[i].shard_bytes));
    i = last + 1;
  }
  return text;
}

}  // namespace

int planned_world_size(const config::RunConfig& config) {
  return config.plan.world_size > 0 ? config.plan.world_size
                                    : std::max(config.launch.num_processes, num_nodes(config));
}

std::string dry_run_report(const config::Settings& settings, int world_size) {
  config::RunConfig config = settings.config;
  config.plan.world_size = world_size;
  config.plan.show_schedule = true;
  const train::RunPlan plan = plan_at(config, place_of(config));  // of the units alone
  return "settings\n" + config::show_settings(settings) + "\nunits\n" + unit_text(plan.units) +
         '\n' + plan_report(config).text + "dry run: nothing was loaded or trained\n";
}

PlanReport plan_report(const config::RunConfig& given) {
  train::require_schedule(given);
  const PlannedPlace place = place_of(given);
  const config::RunConfig config = with_choices(given, place);
  const train::RunPlan plan = plan_at(config, place);
  std::string text = head(config, place, plan);
  text += fmt::format(
      "\nmemory of one rank\n{}",
      memory::phase_table(plan.memory.phases, place.process_bytes + plan.scratch_bytes));
  text +=
      fmt::format("\npeak         {}\n",
                  memory::peak_line(plan.memory.peak, place.process_bytes + plan.scratch_bytes));
  if (place.is_cuda) {
    text += fmt::format(
        "runtime      {} of it the CUDA context, {} workspaces of cuBLAS and buffers of NCCL\n",
        memory::size_text(place.process_bytes), memory::size_text(plan.scratch_bytes));
  }
  text += elsewhere_lines(plan.memory.elsewhere, config.shard);
  text += wire_line(plan.memory.sent_per_step);
  text += verdict(config, place, plan);
  if (config.plan.show_schedule) {
    text += "\nschedule of a micro-batch, with the most in use during each step\n" +
            memory::schedule_text(plan.memory.schedule);
  }
  if (config.plan.deepspeed_estimate) {
    text += '\n' + memory::deepspeed_table({.num_parameters = plan.num_parameters,
                                            .largest_layer = plan.largest_layer,
                                            .gpus_per_node = place.world_size / place.nodes,
                                            .nodes = place.nodes});
  }
  if (!config.plan.dtypes.empty()) {
    text += '\n' + memory::accelerate_table({.model_name = config.model.model_name_or_path,
                                             .num_parameters = plan.num_parameters,
                                             .largest_layer = plan.largest_block},
                                            config.plan.dtypes);
  }
  return {.text = std::move(text),
          .fits = !place.available || needed_bytes(place, plan) <= *place.available};
}

}  // namespace strata::cli
