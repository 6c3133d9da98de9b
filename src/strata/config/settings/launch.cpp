// Records of launch, and of the top-level keys of accelerate's files.
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

std::vector<Setting> launcher_settings() {
  return {
      {.name = "num_processes",
       .aliases = {"num_gpus"},
       .field = STRATA_FIELD(launch.num_processes),
       .range = {.min = 0},
       .help = "ranks on all machines together; 0: one per device, on CPUs one",
       .in_accelerate_file = true},
      {.name = "num_machines",
       .aliases = {"nnodes", "num_nodes"},
       .field = STRATA_FIELD(launch.num_machines),
       .range = {.min = 1},
       .help = "machines of the run, each of which runs this command",
       .in_accelerate_file = true},
      {.name = "machine_rank",
       .aliases = {"node_rank"},
       .field = STRATA_FIELD(launch.machine_rank),
       .range = {.min = 0},
       .help = "number of this machine, from 0",
       .in_accelerate_file = true},
      {.name = "main_process_ip",
       .aliases = {"master_addr"},
       .field = STRATA_FIELD(launch.main_process_ip),
       .help = "address of machine 0",
       .in_accelerate_file = true},
      {.name = "main_process_port",
       .aliases = {"master_port"},
       .field = STRATA_FIELD(launch.main_process_port),
       .range = {.min = 0, .max = 65535},
       .help = "port on machine 0; 0: a free one (one machine) or 29500",
       .in_accelerate_file = true},
      {.name = "gpu_ids",
       .field = STRATA_FIELD(launch.gpu_ids),
       .synonyms = {{"all", ""}},
       .help = "devices to use, such as 0,1; all: every one",
       .in_accelerate_file = true},
      {.name = "num_cpu_threads_per_process",
       .field = STRATA_FIELD(launch.num_cpu_threads_per_process),
       .range = {.min = 0},
       .help = "threads of a rank; 0: OMP_NUM_THREADS, else cores / ranks of this machine"},
      {.name = "log_dir",
       .field = STRATA_FIELD(launch.log_dir),
       .is_path = true,
       .help = "folder for the output of the ranks, one file each; rank 0's is shown too"},
      {.name = "tee",
       .field = STRATA_FIELD(launch.tee),
       .synonyms = {{"0", ""}, {"none", ""}},
       .help = "what is shown of a rank that writes to log_dir: 0 nothing, 1 its output, 2 its "
               "errors, 3 both; or per rank of this machine, such as 0:1,1:3"},
      {.name = "enable_cpu_affinity",
       .field = STRATA_FIELD(launch.enable_cpu_affinity),
       .help = "give every rank its own cores, which are neighbours in the machine",
       .in_accelerate_file = true},
      {.name = "max_restarts",
       .field = STRATA_FIELD(launch.max_restarts),
       .range = {.min = 0},
       .help =
           "how often all ranks are restarted after one has failed; they continue from the newest "
           "checkpoint that the run has saved"},
      {.name = "rdzv_backend",
       .field = STRATA_FIELD(launch.rdzv_backend),
       .refused = {"etcd", "etcd-v2", "zeus"},
       .help = "how the machines, which meet at main_process_ip and main_process_port, are "
               "numbered: by machine_rank (static), or in order of arrival (c10d)",
       .in_accelerate_file = true},
      {.name = "rdzv_conf",
       .field = STRATA_FIELD(launch.rdzv_conf),
       .synonyms = {{"none", ""}},
       .help = "join_timeout=SECONDS (or timeout): how long machines wait for each other at every "
               "start; is_host=true or false (c10d)"},
      {.name = "hang_timeout",
       .field = STRATA_FIELD(launch.hang_timeout_s),
       .range = {.min = 0},
       .help = "seconds that a rank may wait for another before all are stopped and their stacks "
               "written to log_dir (default output_dir); 0: nine tenths of ddp_timeout",
       .peer = "Strata"},
      {.name = "dry_run",
       .field = STRATA_FIELD(launch.dry_run),
       .help = "print settings, ranks, units, schedule and memory plan of one rank and exit; needs "
               "config.json, no weights",
       .peer = "Strata"},
      {.name = "no_python",
       .field = STRATA_FIELD(launch.no_python),
       .help = "start the named program itself on every rank instead of the recipe"},
      {.name = "multi_gpu",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help = "every rank holds the whole model (NO_SHARD)"},
      {.name = "use_fsdp",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help = "shard by the fsdp_ settings, whatever the file's distributed_type"},
      {.name = "distributed_type",
       .kind = Kind::kTranslated,
       .choices = {"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED"},
       .synonyms = {{"false", "NO"}},
       .refused = {"MEGATRON_LM", "XLA", "TPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA",
                   "MULTI_MUSA", "MULTI_HPU", "MULTI_NEURON"},
       .help = "FSDP: shard by fsdp_config; DEEPSPEED: by deepspeed_config; others: every rank "
               "holds the whole model (NO_SHARD)",
       .in_accelerate_file = true},
  };
}

// Known from accelerate; nothing here depends on them.
Setting inert(std::string_view name, std::vector<std::string_view> harmless, std::string_view help,
              bool in_file = true, bool is_switch = false) {
  return {.name = name,
          .kind = Kind::kUnbound,
          .is_switch = is_switch,
          .harmless = std::move(harmless),
          .help = help,
          .in_accelerate_file = in_file};
}

std::vector<Setting> inert_launch_settings() {
  constexpr std::string_view kNoCompiler = "nothing is compiled at run time";
  return {
      inert("same_network", {"false", "true"}, "machines meet at main_process_ip", true, true),
      inert("monitor_interval", {"0.1", "*"}, "ranks are watched without polling", false),
      inert("role", {"default", "*"}, "ranks have no roles", false),
      inert("quiet", {"false", "*"}, "the launcher prints errors only", false, true),
      inert("module", {"false", "*"}, "a script name stands for the recipe", false, true),
      inert("main_training_function", {"main", "none", "*"}, "the recipe has no such function"),
      inert("compute_environment", {"LOCAL_MACHINE"}, "use LOCAL_MACHINE"),
      inert("downcast_bf16", {"no", "false", "none", "*"}, "for TPUs only"),
      inert("tpu", {"false"}, "TPUs are not supported", false, true),
      inert("tpu_cluster", {"false"}, "TPUs are not supported", false, true),
      inert("use_megatron_lm", {"false"}, "use fsdp settings", false, true),
      inert("use_parallelism_config", {"false", "true"}, "its sizes are always read", false, true),
      inert("mpirun_hostfile", {"none"}, "start the ranks with mpirun itself", false),
      inert("tpu_name", {"none"}, "TPUs are not supported"),
      inert("tpu_zone", {"none"}, "TPUs are not supported"),
      inert("tpu_vm", {"none"}, "TPUs are not supported"),
      inert("tpu_env", {"none"}, "TPUs are not supported"),
      inert("tpu_use_cluster", {"false"}, "TPUs are not supported"),
      inert("tpu_use_sudo", {"false", "*"}, "TPUs are not supported"),
      inert("command_file", {"none"}, "TPUs are not supported"),
      inert("commands", {"none"}, "TPUs are not supported"),
      inert("dynamo_backend", {"no", "false", "none", "*"}, kNoCompiler),
      inert("dynamo_mode", {"default", "none", "*"}, kNoCompiler, false),
      inert("dynamo_use_fullgraph", {"false", "*"}, kNoCompiler, false, true),
      inert("dynamo_use_dynamic", {"false", "*"}, kNoCompiler, false, true),
      inert("dynamo_use_regional_compilation", {"false", "*"}, kNoCompiler, false, true),
  };
}

}  // namespace

std::vector<Setting> launch_settings() {
  std::vector<Setting> all = launcher_settings();
  for (Setting& setting : all) {
    setting.group = "launch";
    if (setting.peer.empty()) setting.peer = "accelerate launch";
    setting.scope = setting.name == "dry_run" ? Scope::kBoth : Scope::kLaunch;
  }
  return all;
}

std::vector<Setting> accelerate_file_settings() {
  std::vector<Setting> all = inert_launch_settings();
  for (Setting& setting : all) {
    setting.group = "launch";
    setting.peer = "accelerate launch";
    setting.scope = Scope::kLaunch;
  }
  return all;
}

}  // namespace strata::config
