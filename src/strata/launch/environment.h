// Which rank this process is: read from the variables of torchrun (and `strata launch`), SLURM,
// Open MPI, MVAPICH2, MPICH or Intel MPI. Never: opens a connection.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace strata::launch {

// What a rank ends with that was asked to stop and has saved its state: EX_TEMPFAIL, "try again".
// The launcher takes it for no failure and, when all ranks stopped, ends with it too.
inline constexpr int kStoppedExitCode = 75;

struct RankEnvironment {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  int join_timeout_s = 0;  // for all ranks to appear; 0: nothing said
  // Of rank 0: an open descriptor of the launcher that is bound to master_port; negative: none.
  int listen_descriptor = -1;
  // Of a rank that is watched: open descriptors for its status page and its threads' stacks.
  int status_descriptor = -1;
  int stack_descriptor = -1;
};

using Variable = std::function<std::optional<std::string>(const char* name)>;

// The first of these that is complete: RANK and WORLD_SIZE; SLURM_PROCID and SLURM_NTASKS (inside a
// step, not in a batch script); OMPI_COMM_WORLD_*; MV2_COMM_WORLD_*; PMI_*. None: a single process.
// MASTER_ADDR and MASTER_PORT win over what SLURM or MPI imply.
// Throws ConfigError for incomplete or inconsistent variables.
RankEnvironment detect_rank_environment(const Variable& variable);
RankEnvironment detect_rank_environment();  // of this process

// The first host of SLURM's list form: "node[03-05,9],x1" gives "node03".
std::string first_slurm_host(const std::string& node_list);

}  // namespace strata::launch
