// Numbers of ranks, ports and threads.
#include "strata/launch/plan.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::launch {
namespace {

constexpr int kPortOfSeveralMachines = 29500;  // torchrun's and accelerate's

int count_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max<int>(std::thread::hardware_concurrency(), 1);
}

int count_listed(const std::string& ids) {
  return ids.empty() ? 0 : 1 + static_cast<int>(std::ranges::count(ids, ','));
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

// Binds the port (0: any) for a moment and returns its number; 0 when it is taken.
int try_port(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) throw IoError("socket: found {}, expected a TCP socket", errno_text(errno));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), raw, sizeof(address)) != 0) return 0;
  socklen_t size = sizeof(address);
  if (::getsockname(socket.get(), raw, &size) != 0) return 0;
  return ntohs(address.sin_port);
}

int choose_port(const config::LaunchConfig& config) {
  const int port = config.main_process_port;
  if (config.num_machines > 1) {
    if (port == 0) return kPortOfSeveralMachines;
    if (config.machine_rank > 0) return port;  // it is another machine's
  }
  if (port == 0) return free_port();
  if (is_port_free(port)) return port;
  throw ConfigError("main_process_port: found {} in use, expected a free port; choose another{}",
                    port, config.num_machines > 1 ? " on all machines" : ", or 0 for a free one");
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

}  // namespace

MachineFacts inspect_machine(const config::LaunchConfig& config) {
  return {.num_cores = count_cores(),
          .num_devices = count_devices(config.gpu_ids),
          .has_omp_num_threads = std::getenv("OMP_NUM_THREADS") != nullptr};
}

int free_port() {
  const int port = try_port(0);
  if (port == 0) throw IoError("socket: found no free port, expected one; wait for others to end");
  return port;
}

bool is_port_free(int port) { return try_port(port) != 0; }

LaunchPlan plan_launch(const config::LaunchConfig& config, const MachineFacts& machine,
                       std::vector<std::string> command, double start_time) {
  LaunchPlan plan;
  plan.command = std::move(command);
  plan.log_dir = config.log_dir;
  plan.world_size = settle_processes(config, machine);
  plan.local_world_size = plan.world_size / config.num_machines;
  plan.first_rank = config.machine_rank * plan.local_world_size;
  const std::string& address = config.main_process_ip;
  if (config.num_machines > 1 && (address.empty() || address == "127.0.0.1")) {
    throw ConfigError(
        "main_process_ip: found \"{}\" with num_machines {}, expected the address of machine 0 as "
        "the others see it; add --main_process_ip",
        address, config.num_machines);
  }
  const int threads = config.num_cpu_threads_per_process > 0
                          ? config.num_cpu_threads_per_process
                          : std::max(machine.num_cores / plan.local_world_size, 1);
  plan.environment = {{"WORLD_SIZE", std::to_string(plan.world_size)},
                      {"LOCAL_WORLD_SIZE", std::to_string(plan.local_world_size)},
                      {"MASTER_ADDR", address.empty() ? "127.0.0.1" : address},
                      {"MASTER_PORT", std::to_string(choose_port(config))},
                      {"STRATA_LAUNCH_TIME", fmt::format("{:.3f}", start_time)}};
  if (config.num_cpu_threads_per_process > 0 || !machine.has_omp_num_threads) {
    plan.environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
  }
  if (!config.gpu_ids.empty())
    plan.environment.emplace_back("CUDA_VISIBLE_DEVICES", config.gpu_ids);
  return plan;
}

}  // namespace strata::launch
