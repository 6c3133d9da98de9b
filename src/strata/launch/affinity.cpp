// Reads /sys/devices/system/cpu.
#include "strata/launch/affinity.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <tuple>

#include <fmt/format.h>

namespace strata::launch {
namespace {

namespace fs = std::filesystem;

int number_in(const fs::path& file) {
  int value = 0;
  std::ifstream(file) >> value;
  return value;
}

int node_of(const fs::path& cpu) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(cpu, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("node")) return std::atoi(name.c_str() + 4);
  }
  return 0;
}

}  // namespace

std::vector<Core> inspect_cores() {
  std::vector<Core> cores;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const fs::path folder = fmt::format("/sys/devices/system/cpu/cpu{}", cpu);
    cores.push_back({.cpu = cpu,
                     .node = node_of(folder),
                     .package = number_in(folder / "topology/physical_package_id"),
                     .core = number_in(folder / "topology/core_id")});
  }
  return cores;
}

std::vector<std::vector<int>> share_cores(std::vector<Core> cores, int ranks) {
  std::ranges::sort(cores, {},
                    [](const Core& c) { return std::tuple(c.node, c.package, c.core, c.cpu); });
  std::vector<std::vector<int>> shares(static_cast<size_t>(ranks));
  if (cores.empty()) return shares;
  const size_t count = cores.size();
  for (size_t r = 0; r < shares.size(); ++r) {
    size_t begin = count * r / shares.size();
    size_t end = std::max(count * (r + 1) / shares.size(), begin + 1);
    for (size_t i = begin; i < end; ++i) shares[r].push_back(cores[i].cpu);
  }
  return shares;
}

}  // namespace strata::launch
