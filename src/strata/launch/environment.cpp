// Reads each launcher's variables.
#include "strata/launch/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "strata/base/error.h"
#include "strata/launch/plan.h"
#include "strata/launch/watchdog.h"

namespace strata::launch {
namespace {

// Nothing where the text is anything else, or the number too large for its type.
template <typename Number>
std::optional<Number> read_number(std::string_view text) {
  Number result = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  const bool is_number = error == std::errc() && stop == text.data() + text.size() && result >= 0;
  return is_number ? std::optional<Number>(result) : std::nullopt;
}

class Reader {
 public:
  explicit Reader(const Variable& variable) : variable_(variable) {}

  std::optional<std::string> text(const char* name) const {
    std::optional<std::string> value = variable_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  bool has(const char* name) const { return text(name).has_value(); }

  template <typename Number = int>
  std::optional<Number> number(const char* name) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    if (auto result = read_number<Number>(*value)) return result;
    throw ConfigError("{}: found \"{}\", expected a whole number", name, *value);
  }

  int required(const char* name, const char* beside) const {
    if (auto value = number(name)) return *value;
    throw ConfigError(
        "{}: found nothing although {} is set, expected a whole number; set it, or "
        "unset {}",
        name, beside, beside);
  }

 private:
  const Variable& variable_;
};

void read_meeting_point(const Reader& reader, RankEnvironment& found) {
  if (auto address = reader.text("MASTER_ADDR")) found.master_addr = *address;
  if (auto port = reader.number("MASTER_PORT")) found.master_port = *port;
}

// A program between the launcher and this process may have closed the descriptor.
void read_listener(const Reader& reader, RankEnvironment& found) {
  const auto number = found.rank == 0 ? reader.number(kListenVariable) : std::nullopt;
  if (number && is_bound_to(*number, found.master_port)) found.listen_descriptor = *number;
}

RankEnvironment from_torchrun(const Reader& reader) {
  RankEnvironment found;
  found.rank = reader.required("RANK", "WORLD_SIZE");
  found.world_size = reader.required("WORLD_SIZE", "RANK");
  found.local_rank = reader.number("LOCAL_RANK").value_or(found.rank);
  found.local_world_size = reader.number("LOCAL_WORLD_SIZE").value_or(found.world_size);
  if (found.world_size > 1) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      if (reader.has(name)) continue;
      throw ConfigError(
          "{}: found nothing although WORLD_SIZE is {}, expected where rank 0 listens; start with "
          "strata launch, torchrun or srun",
          name, found.world_size);
    }
  }
  return found;
}

// "2(x3),1" says 2, 2, 2, 1 tasks on the nodes. 0 where the list has no such node. Read to its end,
// so that all nodes see an error in it.
int slurm_tasks_of_node(const char* name, const std::string& layout, int node) {
  int found = 0;
  for (size_t start = 0; start <= layout.size();) {
    const size_t end = std::min(layout.find(',', start), layout.size());
    const std::string_view part(layout.data() + start, end - start);
    const size_t times = part.find("(x");
    const bool repeats = times != std::string_view::npos && part.ends_with(')');
    const auto tasks = read_number<int>(repeats ? part.substr(0, times) : part);
    const auto nodes =
        repeats ? read_number<int>(part.substr(times + 2, part.size() - times - 3)) : 1;
    if (!tasks || !nodes) {
      throw ConfigError("{}: found \"{}\", expected numbers of tasks, such as 2(x3),1", name,
                        layout);
    }
    if (node >= 0 && node < *nodes) found = *tasks;
    node -= *nodes;
    start = end + 1;
  }
  return found;
}

int slurm_tasks_of_node(const Reader& reader, int node) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (const auto layout = reader.text(name)) return slurm_tasks_of_node(name, *layout, node);
  }
  return 0;
}

bool is_slurm_step(const Reader& reader) {
  if (!reader.has("SLURM_PROCID") || !reader.has("SLURM_NTASKS")) return false;
  // In a batch script SLURM_PROCID is 0 and SLURM_NTASKS is the job's, yet only one process runs.
  // A step of srun has a small number; the batch step has none or 2^32 - 5.
  const std::string step = reader.text("SLURM_STEP_ID").value_or("");
  return step.empty() ? !reader.has("SLURM_JOB_ID") : step.size() < 10;
}

RankEnvironment from_slurm(const Reader& reader) {
  RankEnvironment found;
  found.rank = reader.required("SLURM_PROCID", "SLURM_NTASKS");
  found.world_size = reader.number("SLURM_STEP_NUM_TASKS")
                         .value_or(reader.required("SLURM_NTASKS", "SLURM_PROCID"));
  found.local_rank = reader.required("SLURM_LOCALID", "SLURM_PROCID");
  found.local_world_size = slurm_tasks_of_node(reader, reader.number("SLURM_NODEID").value_or(0));
  if (found.local_world_size == 0) {
    const int nodes = reader.number("SLURM_NNODES").value_or(1);
    found.local_world_size = std::max(found.world_size / std::max(nodes, 1), found.local_rank + 1);
  }
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (auto nodes = reader.text(name)) {
      found.master_addr = first_slurm_host(*nodes);
      break;
    }
  }
  // Jobs that share a node must not share a port; all ranks of one job compute the same.
  // Job ids of a federation of clusters use all 32 bits.
  const int64_t job = reader.number<int64_t>("SLURM_JOB_ID").value_or(0);
  if (job > 0) found.master_port = 15000 + static_cast<int>(job % 10000);
  return found;
}

struct MpiNames {
  const char *rank, *size, *local_rank, *local_size;
};

RankEnvironment from_mpi(const Reader& reader, const MpiNames& names) {
  RankEnvironment found;
  found.rank = reader.required(names.rank, names.size);
  found.world_size = reader.required(names.size, names.rank);
  found.local_rank = reader.number(names.local_rank).value_or(found.rank);
  found.local_world_size = reader.number(names.local_size).value_or(found.world_size);
  if (found.local_world_size < found.world_size && !reader.has("MASTER_ADDR")) {
    throw ConfigError(
        "MASTER_ADDR: found nothing under mpirun on several hosts, expected the host "
        "of rank 0; pass it to all ranks (mpirun -x MASTER_ADDR=HOST)");
  }
  return found;
}

void require_consistent(const RankEnvironment& found) {
  auto require = [](bool holds, const char* what, int value, const char* limit, int bound) {
    if (holds) return;
    throw ConfigError("{}: found {}, expected less than {} ({}); check the launcher's variables",
                      what, value, limit, bound);
  };
  if (found.world_size < 1 || found.local_world_size < 1) {
    throw ConfigError("world size: found {} ({} on this machine), expected at least 1",
                      found.world_size, found.local_world_size);
  }
  require(found.rank < found.world_size, "rank", found.rank, "the world size", found.world_size);
  require(found.local_rank < found.local_world_size, "local rank", found.local_rank,
          "the ranks of this machine", found.local_world_size);
  if (found.local_world_size > found.world_size) {
    throw ConfigError(
        "ranks of this machine: found {}, expected at most the world size ({}); check the "
        "launcher's variables",
        found.local_world_size, found.world_size);
  }
  if (found.master_port < 1 || found.master_port > 65535) {
    throw ConfigError("MASTER_PORT: found {}, expected 1 to 65535", found.master_port);
  }
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t close = std::min(node_list.find(']', i), node_list.size());
    const std::string numbers = node_list.substr(i + 1, close - i - 1);
    host += numbers.substr(0, numbers.find_first_of(",-"));
    i = close;
  }
  return host;
}

RankEnvironment detect_rank_environment(const Variable& variable) {
  const Reader reader(variable);
  constexpr MpiNames kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
  constexpr MpiNames kMvapich = {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                                 "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"};
  constexpr MpiNames kMpich = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
  RankEnvironment found;
  if (reader.has("RANK") || reader.has("WORLD_SIZE")) {
    found = from_torchrun(reader);
  } else if (is_slurm_step(reader)) {
    found = from_slurm(reader);
  } else if (reader.has(kOpenMpi.rank) || reader.has(kOpenMpi.size)) {
    found = from_mpi(reader, kOpenMpi);
  } else if (reader.has(kMvapich.rank) || reader.has(kMvapich.size)) {
    found = from_mpi(reader, kMvapich);
  } else if (reader.has(kMpich.rank) || reader.has(kMpich.size)) {
    found = from_mpi(reader, kMpich);
  } else {
    return found;
  }
  found.join_timeout_s = reader.number(kJoinTimeoutVariable).value_or(0);
  found.status_descriptor = reader.number(kStatusVariable).value_or(-1);
  found.stack_descriptor = reader.number(kStackVariable).value_or(-1);
  read_meeting_point(reader, found);
  require_consistent(found);
  read_listener(reader, found);
  return found;
}

RankEnvironment detect_rank_environment() {
  return detect_rank_environment([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace strata::launch
