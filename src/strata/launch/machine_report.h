// What this machine offers a run, and what in it would make one fail. Owns: reading /proc, /sys,
// limits, file systems and interfaces, and judging them. Never: prints (cli/env.cpp), changes
// anything, knows libtorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace strata::launch {

struct CpuFacts {
  std::string model;
  int num_online = 0;
  int num_usable = 0;        // by this process's affinity
  double quota_cores = 0;    // of the container; 0: none
  int num_memory_nodes = 0;  // NUMA
  // Of those that matter to kernels, as /proc/cpuinfo names them: avx2, avx512f, amx_bf16, ...
  std::vector<std::string> features;
  bool has_bf16 = false;  // native bf16 products
};

struct MemoryFacts {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
  uint64_t swap_bytes = 0;
  uint64_t limit_bytes = 0;  // of the container (cgroup version 1 or 2); 0: none
  uint64_t limit_used_bytes = 0;
  // Of the container's groups that have a limit, the one with the least room, which is its limit
  // without what is in use and cannot be dropped. Empty: no limit.
  std::filesystem::path room_folder = {};
  uint64_t room_bytes = 0;
};

struct Limit {
  static constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
  std::string name;  // open files
  std::string flag;  // of the shell's ulimit: -n
  uint64_t soft = kUnlimited;
  uint64_t hard = kUnlimited;
};

struct DiskFacts {
  std::string purpose = {};  // working folder, temporary files, hub cache, shared memory
  std::filesystem::path path = {};
  std::string file_system = {};
  uint64_t size_bytes = 0;
  uint64_t free_bytes = 0;
  bool is_writable = false;
  bool has_direct_io = false;  // O_DIRECT, which offload to files prefers
};

struct NetworkAddress {
  std::string interface;
  std::string address;
  bool is_up = false;
  bool is_loopback = false;
};

struct NetworkFacts {
  std::string host_name;
  std::vector<std::string> host_addresses;  // to which host_name resolves; empty: it does not
  std::vector<NetworkAddress> addresses;
  std::vector<std::string> infiniband;  // adapters
};

struct MachineReport {
  std::string system;  // kernel name, release, machine
  CpuFacts cpu;
  MemoryFacts memory;
  std::vector<std::string> accelerators;  // names, one a device
  std::string driver;                     // of the accelerators
  std::vector<Limit> limits;
  std::vector<DiskFacts> disks;
  NetworkFacts network;
  std::map<std::string, std::string> environment;  // variables that runs react to
};

// Where the kernel's files are; another folder in tests.
struct SystemRoots {
  std::filesystem::path proc = "/proc";
  std::filesystem::path sys = "/sys";
};

// The parts that are files. What cannot be read is left at its default: a report must not fail.
CpuFacts read_cpu(const SystemRoots& roots);
MemoryFacts read_memory(const SystemRoots& roots);
std::vector<std::string> read_accelerators(const SystemRoots& roots);
// What their driver calls them (GPU-8932f937-...); empty where it has not looked at them all yet.
std::vector<std::string> read_accelerator_ids(const SystemRoots& roots);
std::string read_driver(const SystemRoots& roots);  // of the accelerators, in the kernel's words

// The parts that are system calls. Names of hosts may take the resolver's time.
std::vector<Limit> read_limits();
DiskFacts read_disk(const std::string& purpose, const std::filesystem::path& path);
NetworkFacts read_network(const SystemRoots& roots);

// `environment`: all variables of this process.
MachineReport inspect_system(const std::map<std::string, std::string>& environment,
                             const SystemRoots& roots = {});

enum class Severity : uint8_t { kNote, kWarning, kError };

struct Finding {
  Severity severity = Severity::kNote;
  std::string text;  // "subject: found X, expected Y; do Z"
};

// What would fail or be slow, worst first. `uses_accelerators`: whether this build computes on
// them; this folder is compiled without libtorch's definitions, which alone say so (kHasCuda).
std::vector<Finding> judge(const MachineReport& report, bool uses_accelerators);

}  // namespace strata::launch
