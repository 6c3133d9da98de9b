// What a report means for a run. One function per part of the machine.
#include <algorithm>
#include <cstdlib>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/launch/machine_report.h"

namespace strata::launch {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30, kMiB = uint64_t{1} << 20;

std::string gib(uint64_t bytes) {
  return bytes < kGiB ? fmt::format("{:.0f} MiB", static_cast<double>(bytes) / kMiB)
                      : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGiB);
}

class Judge {
 public:
  Judge(const MachineReport& report, bool uses_accelerators)
      : report_(report), uses_accelerators_(uses_accelerators) {}

  std::vector<Finding> findings() {
    judge_cpu();
    judge_memory();
    judge_accelerators();
    judge_limits();
    for (const DiskFacts& disk : report_.disks) judge_disk(disk);
    judge_network();
    std::ranges::stable_sort(found_, std::ranges::greater(), &Finding::severity);
    return std::move(found_);
  }

 private:
  template <typename... Args>
  void add(Severity severity, fmt::format_string<Args...> format, Args&&... args) {
    found_.push_back({severity, fmt::format(format, std::forward<Args>(args)...)});
  }

  std::string variable(const std::string& name) const {
    auto found = report_.environment.find(name);
    return found == report_.environment.end() ? "" : found->second;
  }

  bool has_feature(const std::string& name) const {
    const auto& features = report_.cpu.features;
    return std::ranges::find(features, name) != features.end();
  }

  void judge_cpu() {
    const CpuFacts& cpu = report_.cpu;
    const bool is_x86 = report_.system.ends_with("x86_64");
    if (is_x86 && !has_feature("avx2")) {
      add(Severity::kWarning,
          "processor: found no avx2, expected it for the fast kernels; use a newer processor, or "
          "expect a run several times slower");
    }
    if (is_x86 && !cpu.has_bf16) {
      add(Severity::kNote,
          "processor: found no avx512_bf16, expected it for native bf16; bf16 runs on it compute "
          "in float32 from bf16 weights");
    }
    if (cpu.quota_cores > 0 && cpu.quota_cores < cpu.num_usable - 0.01) {
      add(Severity::kWarning,
          "cpu quota: found {:g} cores for this container of {} that it sees, expected the same; "
          "set num_cpu_threads_per_process so that all ranks together have {:g} threads, or they "
          "are throttled",
          cpu.quota_cores, cpu.num_usable, cpu.quota_cores);
    }
    const int threads = std::atoi(variable("OMP_NUM_THREADS").c_str());
    if (cpu.num_usable > 0 && threads > cpu.num_usable) {
      add(Severity::kWarning,
          "OMP_NUM_THREADS: found {} with {} usable cores, expected at most as many; lower it",
          threads, cpu.num_usable);
    }
  }

  void judge_memory() {
    const MemoryFacts& memory = report_.memory;
    const bool is_limited = memory.limit_bytes > 0 && memory.limit_bytes < memory.total_bytes;
    if (is_limited) {
      add(Severity::kNote,
          "memory: found a limit of {} for this container (host: {}); the limit counts for a run",
          gib(memory.limit_bytes), gib(memory.total_bytes));
    }
    uint64_t free = memory.available_bytes;
    if (memory.limit_bytes > 0) {
      const uint64_t used = std::min(memory.limit_used_bytes, memory.limit_bytes);
      free = std::min(free, memory.limit_bytes - used);
    }
    if (memory.total_bytes > 0 && free < kGiB) {
      add(Severity::kWarning,
          "memory: found {} free, expected at least 1 GiB; end other programs or raise the limit",
          gib(free));
    }
  }

  void judge_accelerators() {
    if (uses_accelerators_ || report_.accelerators.empty()) return;
    add(Severity::kWarning,
        "accelerators: found {}, which this build does not use (it computes on the CPU); pass "
        "--cpu to say so",
        report_.accelerators.size());
  }

  void judge_limits() {
    struct Minimum {
      const char* name;
      uint64_t least;
      const char* reason;
    };
    constexpr Minimum kMinima[] = {
        {"open files", 1024, "every rank keeps its model files and connections open"},
        {"processes", 512, "every thread of every rank counts"},
        {"address space", Limit::kUnlimited, "memory-mapped checkpoints take address space"},
        {"file size", Limit::kUnlimited, "checkpoints are large files"},
        {"processor time", Limit::kUnlimited, "ranks are killed when it is used up"}};
    for (const Limit& limit : report_.limits) {
      for (const Minimum& minimum : kMinima) {
        if (limit.name != minimum.name || limit.soft >= minimum.least) continue;
        const std::string wanted =
            minimum.least == Limit::kUnlimited ? "unlimited" : std::to_string(minimum.least);
        const bool can_raise = limit.hard >= minimum.least;
        add(Severity::kWarning, "{}: found a limit of {}, expected {}{} ({}); {}", limit.name,
            limit.soft, minimum.least == Limit::kUnlimited ? "" : "at least ", wanted,
            minimum.reason,
            can_raise ? fmt::format("run ulimit {} {} before the start", limit.flag, wanted)
                      : "ask the administrator for a higher hard limit");
      }
    }
  }

  void judge_disk(const DiskFacts& disk) {
    const std::string place = fmt::format("{} ({})", disk.purpose, disk.path.string());
    const bool is_shared_memory = disk.purpose == "shared memory";
    if (disk.size_bytes == 0) {
      if (is_shared_memory) {
        add(Severity::kNote, "{}: found no such file system; ranks on the processors need none",
            place);
        return;
      }
      add(Severity::kError, "{}: found no readable folder, expected one; create it", place);
      return;
    }
    if (is_shared_memory) {
      // Ranks on processors share anonymous memory; NCCL and other programs' loaders use this.
      if (disk.size_bytes < 256 * kMiB) {
        add(Severity::kNote,
            "{}: found {}, which is small for NCCL and for data loaders of other programs (ranks "
            "on the processors need none); start the container with --shm-size 1g or more",
            place, gib(disk.size_bytes));
      }
      return;
    }
    if (!disk.is_writable) {
      add(disk.purpose == "hub cache" ? Severity::kNote : Severity::kError,
          "{}: found a folder that this user cannot write, expected a writable one; {}", place,
          disk.purpose == "temporary files" ? "set TMPDIR"
                                            : "choose another, or change its rights");
    }
    if (disk.free_bytes < kGiB) {
      add(Severity::kError, "{}: found {} free, expected room for checkpoints; remove files", place,
          gib(disk.free_bytes));
    }
    if (disk.file_system == "tmpfs" && disk.purpose == "working folder") {
      add(Severity::kWarning,
          "{}: found a file system in memory, expected a disk; what is written here counts as "
          "memory and is lost with the machine",
          place);
    }
  }

  void judge_network() {
    const NetworkFacts& network = report_.network;
    if (network.host_addresses.empty()) {
      add(Severity::kWarning,
          "network: found a host name ({}) that does not resolve, expected an address; add it to "
          "/etc/hosts, or name an address in --main_process_ip",
          network.host_name);
    }
    const bool reaches_others = std::ranges::any_of(
        network.addresses, [](const NetworkAddress& a) { return a.is_up && !a.is_loopback; });
    if (!reaches_others) {
      add(Severity::kNote,
          "network: found no address except loopback; runs on this machine alone work, runs on "
          "several do not");
    }
    const bool resolves_to_itself =
        !network.host_addresses.empty() &&
        std::ranges::all_of(network.host_addresses, [](const std::string& address) {
          return address.starts_with("127.") || address == "::1";
        });
    if (resolves_to_itself && reaches_others) {
      add(Severity::kNote,
          "network: found that {} resolves to {} here; on several machines give the others an "
          "address in --main_process_ip, not this name",
          network.host_name, fmt::join(network.host_addresses, ", "));
    }
    for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) judge_interface(name);
  }

  void judge_interface(const char* name) {
    std::string wanted = variable(name);
    // NCCL takes lists, prefixes and exclusions; only a single plain name is judged.
    if (wanted.empty() || wanted.find_first_of(",^=") != wanted.npos) return;
    const auto& addresses = report_.network.addresses;
    const bool is_known = std::ranges::any_of(
        addresses, [&](const NetworkAddress& a) { return a.interface.starts_with(wanted); });
    if (is_known) return;
    std::vector<std::string> names;
    for (const NetworkAddress& address : addresses) {
      if (std::ranges::find(names, address.interface) == names.end()) {
        names.push_back(address.interface);
      }
    }
    add(Severity::kError, "{}: found {}, expected an interface with an address ({}); correct it",
        name, wanted, fmt::join(names, ", "));
  }

  const MachineReport& report_;
  const bool uses_accelerators_;
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> judge(const MachineReport& report, bool uses_accelerators) {
  return Judge(report, uses_accelerators).findings();
}

}  // namespace strata::launch
