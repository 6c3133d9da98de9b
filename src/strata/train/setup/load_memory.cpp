#include "strata/train/setup/load_memory.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/memory/device_probe.h"

namespace strata::train {
namespace {

constexpr size_t kShownRanks = 16;
constexpr int64_t kFigures = 8;

std::string row(const std::string& name, const LoadFigures& memory) {
  const auto mb = [](double bytes) { return bytes / (1 << 20); };
  return fmt::format("  {:<12}{:>15.0f}{:>10.0f}{:>13.0f}{:>12.0f}", name, mb(memory.before),
                     mb(memory.consumed), mb(memory.peak), mb(memory.total_peak));
}

LoadFigures figures(int64_t before, int64_t after, int64_t peak) {
  const auto start = static_cast<double>(before), most = static_cast<double>(peak);
  return {start, static_cast<double>(after) - start, most - start, most};
}

void take_most(LoadFigures& most, const LoadFigures& other) {
  most.before = std::max(most.before, other.before);
  most.consumed = std::max(most.consumed, other.consumed);
  most.peak = std::max(most.peak, other.peak);
  most.total_peak = std::max(most.total_peak, other.total_peak);
}

}  // namespace

LoadMeter::LoadMeter(at::Device device) : device_(device) {
  memory::reset_device_peak(device);
  device_before_ = memory::device_memory(device).allocated;
}

std::vector<LoadMemory> LoadMeter::finish(comm::Group& world) {
  static_assert(sizeof(LoadMemory) == kFigures * sizeof(double));
  const memory::DeviceMemory found = memory::device_memory(device_);
  const auto peak = static_cast<int64_t>(watch_.stop());
  const LoadMemory own{figures(static_cast<int64_t>(watch_.start_bytes()), resident_bytes(), peak),
                       figures(device_before_, found.allocated, found.allocated_peak)};
  at::Tensor in = at::empty({kFigures}, at::kDouble);
  std::memcpy(in.data_ptr(), &own, sizeof(own));
  at::Tensor all = at::empty({kFigures * world.size()}, at::kDouble);
  world.all_gather(all, in)->wait();
  std::vector<LoadMemory> ranks(static_cast<size_t>(world.size()));
  std::memcpy(ranks.data(), all.data_ptr(), ranks.size() * sizeof(LoadMemory));
  return ranks;
}

std::vector<std::string> describe_load_memory(const std::vector<LoadMemory>& ranks,
                                              at::Device device) {
  std::vector<std::string> lines{
      "memory of loading, MB    before  consumed  peak during  total peak"};
  const bool has_device = device.is_cuda();
  LoadMemory most;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    take_most(most.host, ranks[rank].host);
    take_most(most.device, ranks[rank].device);
    if (rank >= kShownRanks) continue;
    lines.push_back(row(fmt::format("CPU rank {}", rank), ranks[rank].host));
    if (has_device) lines.push_back(row(fmt::format("GPU rank {}", rank), ranks[rank].device));
  }
  if (ranks.size() > kShownRanks) {
    lines.push_back(row(fmt::format("most of {}", ranks.size()), most.host));
    if (has_device) lines.push_back(row("GPU most", most.device));
  }
  if (!has_device) lines.push_back("  device      none: the CPU computes");
  return lines;
}

}  // namespace strata::train
