#include "strata/train/load_memory.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "strata/memory/device_probe.h"
#include "strata/memory/plan_text.h"

namespace strata::train {
namespace {

constexpr size_t kShownRanks = 16;
constexpr int64_t kFigures = 4;

std::string row(const std::string& name, const LoadMemory& memory) {
  const auto mb = [](double bytes) { return bytes / (1 << 20); };
  return fmt::format("  {:<12}{:>15.0f}{:>10.0f}{:>13.0f}{:>12.0f}", name, mb(memory.before),
                     mb(memory.consumed), mb(memory.peak), mb(memory.total_peak));
}

}  // namespace

std::vector<LoadMemory> LoadMeter::finish(comm::Group& world) {
  const auto peak = static_cast<double>(watch_.stop());
  const auto before = static_cast<double>(watch_.start_bytes());
  const double own[kFigures] = {before, static_cast<double>(resident_bytes()) - before,
                                peak - before, peak};
  at::Tensor in = at::empty({kFigures}, at::kDouble);
  std::memcpy(in.data_ptr(), own, sizeof(own));
  at::Tensor all = at::empty({kFigures * world.size()}, at::kDouble);
  world.all_gather(all, in)->wait();
  std::vector<LoadMemory> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    const double* figures = all.data_ptr<double>() + kFigures * rank;
    ranks.push_back({figures[0], figures[1], figures[2], figures[3]});
  }
  return ranks;
}

std::vector<std::string> describe_load_memory(const std::vector<LoadMemory>& ranks,
                                              at::Device device) {
  std::vector<std::string> lines{
      "memory of loading, MB    before  consumed  peak during  total peak"};
  LoadMemory most;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    most.before = std::max(most.before, ranks[rank].before);
    most.consumed = std::max(most.consumed, ranks[rank].consumed);
    most.peak = std::max(most.peak, ranks[rank].peak);
    most.total_peak = std::max(most.total_peak, ranks[rank].total_peak);
    if (rank < kShownRanks) lines.push_back(row(fmt::format("CPU rank {}", rank), ranks[rank]));
  }
  if (ranks.size() > kShownRanks) {
    lines.push_back(row(fmt::format("most of {}", ranks.size()), most));
  }
  if (!device.is_cuda()) {
    lines.push_back("  device      none: the CPU computes");
  } else {
    const memory::DeviceMemory found = memory::device_memory(device);
    lines.push_back(fmt::format("  {:<12}{} in tensors, {} at most while loading", device.str(),
                                memory::size_text(found.allocated),
                                memory::size_text(found.allocated_peak)));
  }
  return lines;
}

}  // namespace strata::train
