// Records of the flags of `strata slurm` itself, under sbatch's names, and of `strata env`.
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

std::vector<Setting> job_settings() {
  return {
      {.name = "job_name", .field = STRATA_FIELD(slurm.job_name), .help = "name of the job"},
      {.name = "nodes",
       .field = STRATA_FIELD(slurm.nodes),
       .range = {.min = 0},
       .help = "machines; 0: num_machines"},
      {.name = "gpus_per_node",
       .field = STRATA_FIELD(slurm.gpus_per_node),
       .range = {.min = 0},
       .help =
           "devices of each machine, one rank each; 0: num_processes / nodes (with --cpu none)"},
      {.name = "cpus_per_task",
       .aliases = {"cpus_per_node"},
       .field = STRATA_FIELD(slurm.cpus_per_task),
       .range = {.min = 0},
       .help = "cores of each machine (one task runs on it); 0: what SLURM gives"},
      {.name = "mem",
       .field = STRATA_FIELD(slurm.mem),
       .help = "memory of each machine, such as 200G; 0: all of it; default: what SLURM gives"},
      {.name = "time",
       .field = STRATA_FIELD(slurm.time),
       .help = "time limit, such as 24:00:00; default: the partition's"},
      {.name = "partition", .field = STRATA_FIELD(slurm.partition), .help = "partition"},
      {.name = "account", .field = STRATA_FIELD(slurm.account), .help = "account"},
      {.name = "qos", .field = STRATA_FIELD(slurm.qos), .help = "quality of service"},
      {.name = "constraint",
       .field = STRATA_FIELD(slurm.constraint),
       .help = "features that the machines must have"},
      {.name = "exclusive",
       .field = STRATA_FIELD(slurm.exclusive),
       .help = "no other jobs on the machines"},
      {.name = "slurm_log",
       .field = STRATA_FIELD(slurm.log),
       .help = "file of the job's output, in sbatch's patterns"},
      {.name = "sbatch_options",
       .field = STRATA_FIELD(slurm.sbatch_options),
       .help = "further options of sbatch, such as --sbatch_options=\"--reservation=x "
               "--licenses=y\""},
  };
}

std::vector<Setting> run_settings() {
  return {
      {.name = "requeue",
       .field = STRATA_FIELD(slurm.requeue),
       .help = "requeue the job if it was stopped before its end; it resumes from the newest "
               "checkpoint"},
      {.name = "stop_seconds",
       .field = STRATA_FIELD(slurm.stop_seconds),
       .range = {.min = 30, .max = 65535},
       .help = "seconds before the time limit at which the ranks save and stop"},
      {.name = "container_image",
       .field = STRATA_FIELD(slurm.container_image),
       .help = "image in which the program runs; default: none"},
      {.name = "container_mounts",
       .field = STRATA_FIELD(slurm.container_mounts),
       .help = "folders that the container sees, such as /data,/shared:/shared"},
      {.name = "container_runtime",
       .field = STRATA_FIELD(slurm.container_runtime),
       .help = "what starts the container; auto: apptainer for a .sif file, else pyxis"},
      {.name = "setup",
       .field = STRATA_FIELD(slurm.setup),
       .help = "shell commands before the start, such as \"module load gcc; source env.sh\""},
      {.name = "program",
       .field = STRATA_FIELD(slurm.program),
       .help = "path of strata on the machines; default: this program (in a container: strata)"},
      {.name = "script",
       .field = STRATA_FIELD(slurm.script),
       .help = "file to write; default: standard output, with --submit JOB_NAME.sbatch"},
      {.name = "overwrite",
       .kind = Kind::kSource,
       .is_switch = true,
       .help = "replace an existing file whose content differs"},
      {.name = "submit", .field = STRATA_FIELD(slurm.submit), .help = "hand the script to sbatch"},
  };
}

}  // namespace

std::span<const Setting> slurm_settings_table() {
  static const std::vector<Setting> table = [] {
    std::vector<Setting> all;
    for (auto& [group, part] : {std::pair{"job", job_settings()}, {"run", run_settings()}}) {
      for (Setting setting : part) {
        setting.group = group;
        setting.peer = "sbatch";
        all.push_back(std::move(setting));
      }
    }
    return all;
  }();
  return table;
}

std::span<const Setting> env_settings_table() {
  static const std::vector<Setting> table = {
      {.name = "json",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help = "print JSON",
       .group = "form"},
      {.name = "config_file",
       .kind = Kind::kSource,
       .is_path = true,
       .help = "configuration file of accelerate to check; default: the one that launch would read",
       .group = "form"},
  };
  return table;
}

}  // namespace strata::config
