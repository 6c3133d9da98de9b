// Numbers of ranks, ports and threads.
#include "strata/launch/plan.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "strata/base/error.h"
#include "strata/config/device_ids.h"
#include "strata/launch/address.h"
#include "strata/launch/rendezvous_conf.h"

namespace strata::launch {
namespace {

constexpr int kPortOfSeveralMachines = 29500;  // torchrun's and accelerate's

int count_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max<int>(std::thread::hardware_concurrency(), 1);
}

std::string_view without_spaces_around(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// As CUDA reads CUDA_VISIBLE_DEVICES: the first that is none (-1, NoDevFiles) ends the list.
int count_listed(std::string_view ids) {
  int count = 0;
  while (!ids.empty()) {
    const size_t comma = std::min(ids.find(','), ids.size());
    if (!config::names_device(without_spaces_around(ids.substr(0, comma)))) break;
    ++count;
    ids.remove_prefix(std::min(comma + 1, ids.size()));
  }
  return count;
}

int count_devices(const std::string& gpu_ids) {
  if (!gpu_ids.empty()) return count_listed(gpu_ids);
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) return count_listed(visible);
  std::error_code error;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    count += entry.is_directory() ? 1 : 0;
  }
  return count;
}

std::optional<ReservedPort> settle_port(const config::LaunchConfig& config) {
  if (uses_meeting(config)) return std::nullopt;  // found when the machines meet
  const int number = config.main_process_port;
  // A program of one's own may not know of the descriptor and ask for the port itself.
  std::optional<ReservedPort> port = reserve_port(number, /*listens=*/!config.no_python);
  if (port) return port;
  if (number == 0) {
    throw IoError(
        "main_process_port: found no free port, expected one; wait until other programs "
        "end");
  }
  throw ConfigError(
      "main_process_port: found {} in use, expected a free port; choose another, or 0 for a free "
      "one",
      number);
}

int port_number(const config::LaunchConfig& config, const std::optional<ReservedPort>& port) {
  if (port) return port->number;
  return config.main_process_port > 0 ? config.main_process_port : kPortOfSeveralMachines;
}

void check_devices(const config::LaunchConfig& config, int local_world_size) {
  if (config.gpu_ids.empty()) return;
  const int devices = config::count_device_ids(config.gpu_ids, "gpu_ids");
  if (!config.cpu && devices < local_world_size) {
    throw ConfigError(
        "gpu_ids: found {} devices for {} ranks of this machine, expected one each; lower "
        "num_processes, list more devices or pass --cpu",
        devices, local_world_size);
  }
}

int settle_processes(const config::LaunchConfig& config, const MachineFacts& machine) {
  int processes = config.num_processes;
  if (processes == 0) {
    processes = config.cpu ? 1 : std::max(machine.num_devices, 1);
    processes *= config.num_machines;
  }
  if (processes % config.num_machines != 0) {
    throw ConfigError("num_processes: found {}, expected a multiple of num_machines ({})",
                      processes, config.num_machines);
  }
  return processes;
}

void require_reachable(const config::LaunchConfig& config) {
  const std::string& address = config.main_process_ip;
  if (config.num_machines == 1) return;
  // The default address cannot be told from one that was given.
  const bool listens = is_for_listening_only(address);
  if (!address.empty() && address != "127.0.0.1" && !listens) return;
  const std::string fault = address.empty() ? ""
                            : listens ? ", at which one listens and which leads to no machine,"
                                      : ", which is each machine itself,";
  throw ConfigError(
      "main_process_ip: found \"{}\"{} with num_machines {}, expected the address of machine 0 as "
      "the others see it; give --main_process_ip the address of its network interface (strata env "
      "lists them), also for several launchers on one machine",
      address, fault, config.num_machines);
}

[[noreturn]] void refuse_tee(const std::string& text, const std::string& why) {
  throw ConfigError(
      "tee: found \"{}\"{}, expected 0 to 3 (1: output, 2: errors, 3: both) or LOCAL_RANK:NUMBER "
      "separated by commas, such as 0:1,1:3",
      text, why);
}

}  // namespace

std::vector<int> parse_tee(const std::string& text, int local_world_size) {
  std::vector<int> result(static_cast<size_t>(local_world_size), 0);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const size_t colon = part.find(':');
    const std::string what = part.substr(colon == std::string::npos ? 0 : colon + 1);
    if (what.size() != 1 || what[0] < '0' || what[0] > '3') refuse_tee(text, "");
    if (colon == std::string::npos) {
      if (begin != 0 || end != text.size()) refuse_tee(text, "");
      std::ranges::fill(result, what[0] - '0');
      return result;
    }
    size_t rank = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + colon, rank);
    if (error != std::errc() || stop != part.data() + colon) refuse_tee(text, "");
    if (rank >= result.size()) {
      refuse_tee(text, fmt::format(" with {} ranks on this machine", local_world_size));
    }
    result[rank] = what[0] - '0';
    begin = end + 1;
  }
  return result;
}

MachineFacts inspect_machine(const config::LaunchConfig& config) {
  return {.num_cores = count_cores(),
          .num_devices = count_devices(config.gpu_ids),
          .has_omp_num_threads = std::getenv("OMP_NUM_THREADS") != nullptr,
          .cores = config.enable_cpu_affinity ? inspect_cores() : std::vector<Core>()};
}

int threads_of_rank(const config::LaunchConfig& config, const MachineFacts& machine,
                    int local_world_size) {
  if (config.num_cpu_threads_per_process > 0) return config.num_cpu_threads_per_process;
  return std::max(machine.num_cores / local_world_size, 1);
}

LaunchPlan plan_launch(const config::LaunchConfig& config, const MachineFacts& machine,
                       std::vector<std::string> command, double start_time) {
  LaunchPlan plan;
  plan.command = std::move(command);
  plan.world_size = settle_processes(config, machine);
  plan.local_world_size = plan.world_size / config.num_machines;
  plan.first_rank = config.machine_rank * plan.local_world_size;
  const std::string& address = config.main_process_ip;
  require_reachable(config);
  check_devices(config, plan.local_world_size);
  plan.log_dir = config.log_dir;
  plan.tee = parse_tee(config.tee, plan.local_world_size);
  plan.port = settle_port(config);
  plan.launch_time = fmt::format("{:.3f}", start_time);
  plan.max_restarts = config.max_restarts;
  if (config.enable_cpu_affinity) plan.cores = share_cores(machine.cores, plan.local_world_size);
  const int threads = threads_of_rank(config, machine, plan.local_world_size);
  plan.environment = {{"WORLD_SIZE", std::to_string(plan.world_size)},
                      {"LOCAL_WORLD_SIZE", std::to_string(plan.local_world_size)},
                      {"MASTER_ADDR", address.empty() ? "127.0.0.1" : address},
                      {"MASTER_PORT", std::to_string(port_number(config, plan.port))},
                      // Rank 0 serves the port itself, whatever started this launcher.
                      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(config.max_restarts)},
                      {"STRATA_LAUNCH_TIME", plan.launch_time}};
  if (config.num_cpu_threads_per_process > 0 || !machine.has_omp_num_threads) {
    plan.environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
  }
  if (const auto timeout = parse_rendezvous_conf(config.rdzv_conf).join_timeout) {
    plan.environment.emplace_back(kJoinTimeoutVariable, std::to_string(timeout->count()));
  }
  if (!config.gpu_ids.empty()) {
    plan.environment.emplace_back("CUDA_VISIBLE_DEVICES", config.gpu_ids);
  }
  return plan;
}

}  // namespace strata::launch
