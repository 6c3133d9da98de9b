// Reading of the kernel's files: processor, memory, accelerators.
#include "strata/launch/machine_report.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include <fmt/format.h>

namespace strata::launch {
namespace {

namespace fs = std::filesystem;

// Version 1 writes a number near 2^63 for "no limit".
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// Lines "name : value"; of names that come again the first.
std::map<std::string, std::string> read_pairs(const fs::path& path) {
  std::map<std::string, std::string> pairs;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    pairs.emplace(trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
  }
  return pairs;
}

// "max", an empty file and version 1's huge number are no limit: 0.
uint64_t read_limit(const fs::path& path) {
  const std::string text = first_line(path);
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return 0;
  const uint64_t value = std::strtoull(text.c_str(), nullptr, 10);
  return value >= kNoLimit ? 0 : value;
}

// The folders of this process's group and of its parents, the innermost first. `controller`:
// "memory" or "cpu" in version 1, empty in version 2. A container sees its own group as the root.
std::vector<fs::path> group_folders(const SystemRoots& roots, const std::string& controller) {
  std::ifstream file(roots.proc / "self" / "cgroup");
  std::string group = "/";
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/a/b", "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names.find("," + controller + ",") != names.npos) group = line.substr(second + 1);
  }
  const fs::path base = roots.sys / "fs" / "cgroup" / controller;
  std::vector<fs::path> folders;
  for (fs::path path = fs::path(group).relative_path(); !path.empty(); path = path.parent_path()) {
    folders.push_back(base / path);
  }
  folders.push_back(base);
  return folders;
}

// What the kernel takes back before it ends a process of the group, as MemAvailable counts it for
// the machine: pages of files, used lately or not (those in memory alone, of tmpfs, are in neither
// list), and what it keeps of names and inodes. `prefix`: of sums over groups below.
uint64_t read_reclaimable(const fs::path& folder, const std::string& prefix) {
  std::ifstream file(folder / "memory.stat");  // "inactive_file 4096"
  std::string key;
  uint64_t bytes = 0;
  for (uint64_t value = 0; file >> key >> value;) {
    const bool is_own = key == prefix + "inactive_file" || key == prefix + "active_file";
    if (is_own || key == "slab_reclaimable") bytes += value;
  }
  return bytes;
}

void read_memory_limit(const SystemRoots& roots, MemoryFacts& memory) {
  struct Names {
    const char *controller, *limit, *used, *prefix;
  };
  for (const Names& names :
       {Names{"", "memory.max", "memory.current", ""},
        Names{"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"}}) {
    for (const fs::path& folder : group_folders(roots, names.controller)) {
      const uint64_t limit = read_limit(folder / names.limit);
      if (limit == 0) continue;
      const uint64_t used = read_limit(folder / names.used);
      const uint64_t kept = used - std::min(used, read_reclaimable(folder, names.prefix));
      const uint64_t room = limit - std::min(limit, kept);
      if (memory.room_folder.empty() || room < memory.room_bytes) {
        memory.room_folder = folder;
        memory.room_bytes = room;
      }
      if (memory.limit_bytes != 0 && limit >= memory.limit_bytes) continue;
      memory.limit_bytes = limit;
      memory.limit_used_bytes = used;
    }
  }
}

double read_quota(const SystemRoots& roots) {
  double quota = 0;
  auto add = [&](double share, double period) {
    if (share <= 0 || period <= 0) return;
    quota = quota == 0 ? share / period : std::min(quota, share / period);
  };
  for (const fs::path& folder : group_folders(roots, "")) {
    std::istringstream text(first_line(folder / "cpu.max"));
    double share = 0, period = 0;
    if (text >> share >> period) add(share, period);  // "max 100000" has no number first
  }
  for (const fs::path& folder : group_folders(roots, "cpu")) {
    add(std::atof(first_line(folder / "cpu.cfs_quota_us").c_str()),
        std::atof(first_line(folder / "cpu.cfs_period_us").c_str()));
  }
  return quota;
}

int count_entries(const fs::path& folder, const std::string& prefix) {
  std::error_code error;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const bool is_numbered = name.size() > prefix.size() && name.starts_with(prefix) &&
                             name.find_first_not_of("0123456789", prefix.size()) == name.npos;
    count += is_numbered ? 1 : 0;
  }
  return count;
}

// What a run reacts to; never tokens or passwords.
bool is_shown(const std::string& name) {
  static const std::set<std::string> kNames = {
      "RANK",        "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",     "MASTER_ADDR",
      "MASTER_PORT", "TMPDIR",     "HF_HOME",    "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE",
      "LC_ALL",      "LANG",       "TERM",       "MALLOC_ARENA_MAX",     "LD_PRELOAD",
      "HF_HUB_CACHE"};
  if (kNames.contains(name)) return true;
  if (name.find("KEY") != name.npos || name.find("TOKEN") != name.npos) return false;
  for (const char* prefix : {"ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "GLOO_", "NCCL_",
                             "OMP_", "KMP_", "MKL_", "GOMP_", "STRATA_", "SLURM_JOB", "SLURM_N",
                             "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_", "PMI_"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

}  // namespace

CpuFacts read_cpu(const SystemRoots& roots) {
  CpuFacts cpu;
  const auto pairs = read_pairs(roots.proc / "cpuinfo");
  for (const char* name : {"model name", "CPU part", "cpu model"}) {
    auto found = pairs.find(name);
    if (found != pairs.end() && cpu.model.empty()) cpu.model = found->second;
  }
  std::set<std::string> flags;
  for (const char* name : {"flags", "Features"}) {
    auto found = pairs.find(name);
    std::istringstream words(found == pairs.end() ? "" : found->second);
    for (std::string word; words >> word;) flags.insert(word);
  }
  for (const char* name : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx_vnni",
                           "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
                           "amx_int8", "asimd", "sve", "bf16", "i8mm"}) {
    if (flags.contains(name)) cpu.features.emplace_back(name);
  }
  cpu.has_bf16 = flags.contains("avx512_bf16");
  cpu.num_online = count_entries(roots.sys / "devices" / "system" / "cpu", "cpu");
  cpu.num_memory_nodes = count_entries(roots.sys / "devices" / "system" / "node", "node");
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) cpu.num_usable = CPU_COUNT(&set);
  cpu.quota_cores = read_quota(roots);
  return cpu;
}

MemoryFacts read_memory(const SystemRoots& roots) {
  MemoryFacts memory;
  const auto pairs = read_pairs(roots.proc / "meminfo");
  auto bytes = [&](const char* name) {
    auto found = pairs.find(name);
    return found == pairs.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 10) * 1024;
  };
  memory.total_bytes = bytes("MemTotal");
  memory.available_bytes = bytes("MemAvailable");
  memory.swap_bytes = bytes("SwapTotal");
  read_memory_limit(roots, memory);
  return memory;
}

std::vector<std::string> read_accelerators(const SystemRoots& roots) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(roots.proc / "driver/nvidia/gpus", error)) {
    const auto pairs = read_pairs(entry.path() / "information");
    auto model = pairs.find("Model");
    names.push_back(model == pairs.end() ? "NVIDIA device" : model->second);
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> read_accelerator_ids(const SystemRoots& roots) {
  std::vector<std::string> ids;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(roots.proc / "driver/nvidia/gpus", error)) {
    const auto pairs = read_pairs(entry.path() / "information");
    const auto id = pairs.find("GPU UUID");
    const bool is_known = id != pairs.end() && id->second.find('?') == std::string::npos;
    if (!is_known) return {};
    ids.push_back(id->second);
  }
  std::ranges::sort(ids);
  return ids;
}

std::string read_driver(const SystemRoots& roots) {
  const auto versions = read_pairs(roots.proc / "driver" / "nvidia" / "version");
  const auto found = versions.find("NVRM version");
  return found == versions.end() ? "" : found->second;
}

MachineReport inspect_system(const std::map<std::string, std::string>& environment,
                             const SystemRoots& roots) {
  MachineReport report;
  struct utsname system {};
  if (::uname(&system) == 0) {
    report.system = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  }
  report.cpu = read_cpu(roots);
  report.memory = read_memory(roots);
  report.accelerators = read_accelerators(roots);
  report.driver = read_driver(roots);
  report.limits = read_limits();
  auto variable = [&](const char* name, const std::string& otherwise) {
    auto found = environment.find(name);
    return found == environment.end() || found->second.empty() ? otherwise : found->second;
  };
  std::error_code error;
  report.disks = {
      read_disk("working folder", fs::current_path(error)),
      read_disk("temporary files", variable("TMPDIR", "/tmp")),
      read_disk("hub cache",
                variable("HF_HOME", variable("XDG_CACHE_HOME", variable("HOME", "") + "/.cache") +
                                        "/huggingface")),
      read_disk("shared memory", "/dev/shm")};
  report.network = read_network(roots);
  for (const auto& [name, value] : environment) {
    if (is_shown(name)) report.environment.emplace(name, value);
  }
  return report;
}

}  // namespace strata::launch
