#include "strata/train/planning/planned_room.h"

#include <algorithm>

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "strata/base/byte_size.h"
#include "strata/base/resident_memory.h"
#include "strata/launch/machine_report.h"
#include "strata/memory/device_probe.h"
#include "strata/memory/plan_text.h"
#include "strata/memory/probe.h"

namespace strata::train {
namespace {

// The rest is for what no plan sees: pieces of memory too small for what is asked for.
constexpr double kPart = 0.9;

int64_t free_on_host(int num_sharers) {
  const launch::MemoryFacts facts = launch::read_memory({});
  uint64_t bytes = facts.available_bytes;
  if (!facts.room_folder.empty()) bytes = std::min(bytes, facts.room_bytes);
  return static_cast<int64_t>(bytes) / num_sharers;
}

int64_t free_bytes(at::Device device, int num_sharers) {
  return device.is_cuda() ? memory::device_memory(device).free / num_sharers
                          : free_on_host(num_sharers);
}

// The room of the rank that has least. Collective.
int64_t least_of(const comm::Mesh& mesh, double bytes) {
  const at::Tensor least = at::full({1}, -bytes, at::TensorOptions().dtype(at::kDouble));
  mesh.world->all_reduce(least, comm::Reduction::kMax)->wait();
  return static_cast<int64_t>(-least.item<double>());
}

double room_of_rank(const config::RunConfig& config, at::Device device, int num_sharers) {
  if (config.shard.memory_budget.empty()) {
    return static_cast<double>(free_room(device, num_sharers));
  }
  const auto budget = static_cast<double>(parse_byte_size(config.shard.memory_budget));
  // For a GPU, plans count what lies in its context, not the context.
  return device.is_cuda() ? budget - static_cast<double>(memory::kCudaContextBytes) : budget;
}

}  // namespace

int64_t free_room(at::Device device, int num_sharers) {
  const auto room =
      static_cast<int64_t>(kPart * static_cast<double>(free_bytes(device, num_sharers)));
  return room + held_bytes(device);
}

int64_t held_bytes(at::Device device) {
  return device.is_cuda() ? memory::device_memory(device).reserved : resident_bytes();
}

int64_t room_of_run(const config::RunConfig& config, const comm::Mesh& mesh, at::Device device,
                    int num_sharers) {
  return least_of(mesh, room_of_rank(config, device, num_sharers));
}

int64_t needed_bytes(const RunPlan& plan, at::Device device) {
  // Of a GPU's libraries these are all, the workspaces of products among them.
  if (device.is_cuda()) return plan.memory.peak.peak_bytes + plan.scratch_bytes;
  return memory::peak_bytes(plan.memory.peak,
                            resident_bytes() + memory::kWarmUpBytes + plan.scratch_bytes);
}

std::optional<std::string> memory_warning(const comm::Mesh& mesh, at::Device device,
                                          int num_sharers, std::optional<int64_t> bytes_to_come) {
  const int64_t found = least_of(mesh, static_cast<double>(free_bytes(device, num_sharers)));
  if (!bytes_to_come || *bytes_to_come <= found) return std::nullopt;
  const std::string sharing =
      num_sharers == 1 ? "" : fmt::format(" for each of {} ranks", num_sharers);
  return fmt::format(
      "warning: memory: found {} free{}, expected the {} that a rank will take according to the "
      "plan; if memory runs out the system kills the run: lower per_device_train_batch_size or "
      "max_length, quantise or offload, or use more machines (strata plan --device_memory SIZE "
      "says what fits)",
      memory::size_text(found), sharing, memory::size_text(*bytes_to_come));
}

}  // namespace strata::train
