// Text of the batch script.
#include "strata/launch/slurm_script.h"

#include <sstream>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/shell_word.h"
#include "strata/launch/environment.h"

namespace strata::launch {
namespace {

std::string words(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& word : list) text += " " + shell_word(word);
  return text;
}

// "#SBATCH" lines end at the line's end and know no quoting of it.
void require_one_line(const std::string& name, const std::string& text) {
  if (text.find('\n') == text.npos) return;
  throw ConfigError("--{}: found a line break, expected one line; remove it", name);
}

class Script {
 public:
  Script(const config::SlurmConfig& slurm, const SlurmJob& job) : slurm_(slurm), job_(job) {}

  std::string text() {
    line("#!/bin/bash");
    write_options();
    line("");
    if (!slurm_.setup.empty()) line(slurm_.setup);
    // Of the lines from here on: what machines are set up with may read variables that are not set.
    line("set -u");
    write_meeting_point();
    write_resume();
    write_start();
    write_end();
    return std::move(out_);
  }

 private:
  void line(const std::string& text) { out_ += text + "\n"; }

  void option(const std::string& name, const std::string& value) {
    require_one_line(name, value);
    if (!value.empty()) line(fmt::format("#SBATCH --{}={}", name, shell_word(value)));
  }

  void write_options() {
    option("job-name", slurm_.job_name);
    option("nodes", std::to_string(job_.num_nodes));
    option("ntasks-per-node", "1");
    if (job_.uses_gpus) option("gpus-per-node", std::to_string(job_.ranks_per_node));
    if (slurm_.cpus_per_task > 0) option("cpus-per-task", std::to_string(slurm_.cpus_per_task));
    option("mem", slurm_.mem);
    option("time", slurm_.time);
    option("partition", slurm_.partition);
    option("account", slurm_.account);
    option("qos", slurm_.qos);
    option("constraint", slurm_.constraint);
    if (slurm_.exclusive) line("#SBATCH --exclusive");
    option("chdir", job_.work_folder);
    option("output", slurm_.log);
    line("#SBATCH --open-mode=append");
    // To this script alone (B:), which passes it on.
    option("signal", fmt::format("B:USR1@{}", slurm_.stop_seconds));
    line(slurm_.requeue ? "#SBATCH --requeue" : "#SBATCH --no-requeue");
    require_one_line("sbatch_options", slurm_.sbatch_options);
    std::istringstream further(slurm_.sbatch_options);
    for (std::string word; further >> word;) line("#SBATCH " + word);
  }

  void write_meeting_point() {
    line("");
    line("# Where the machines meet. Jobs that share a machine must not share a port.");
    line("MASTER_ADDR=\"$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\"");
    line("MASTER_PORT=\"$((15000 + SLURM_JOB_ID % 10000))\"");
    line("export MASTER_ADDR MASTER_PORT");
  }

  // A job that comes again finds what it saved; checkpoint-N.tmp-PID is one that was not finished.
  void write_resume() {
    line("");
    line("resume=(" +
         (job_.resume_from.empty() ? ""
                                   : "--resume_from_checkpoint " + shell_word(job_.resume_from)) +
         ")");
    line(fmt::format("for folder in {}/checkpoint-*; do", shell_word(job_.output_dir)));
    line("  [[ $folder =~ /checkpoint-[0-9]+$ ]] && resume=(--resume_from_checkpoint true)");
    line("done");
  }

  std::string container() const {
    if (slurm_.container_image.empty()) return "";
    const std::string& image = slurm_.container_image;
    const bool is_apptainer =
        slurm_.container_runtime == config::ContainerRuntime::kApptainer ||
        (slurm_.container_runtime == config::ContainerRuntime::kAuto && image.ends_with(".sif"));
    if (!is_apptainer) {
      std::string text = " --container-image=" + shell_word(image);
      if (!slurm_.container_mounts.empty()) {
        text += " --container-mounts=" + shell_word(slurm_.container_mounts);
      }
      return text + " --container-workdir=\"$PWD\"";
    }
    std::string text = " apptainer exec --pwd \"$PWD\"";
    if (job_.uses_gpus) text += " --nv";
    if (!slurm_.container_mounts.empty()) text += " --bind " + shell_word(slurm_.container_mounts);
    return text + " " + shell_word(image);
  }

  void write_start() {
    line("");
    line("# One launcher a machine. When one ends, the others have 60 seconds.");
    std::string command = "srun --ntasks-per-node=1 --wait=60";
    if (slurm_.cpus_per_task > 0)
      command += fmt::format(" --cpus-per-task={}", slurm_.cpus_per_task);
    // The node's number is known on the node only: a shell there reads it.
    line(command + container() + " \\");
    line("  bash -c 'exec \"$0\" launch --machine_rank \"$SLURM_NODEID\" \"$@\"' \\");
    line("  " + shell_word(job_.program) +
         fmt::format(" --num_machines {} --num_processes {} \\", job_.num_nodes,
                     job_.num_nodes * job_.ranks_per_node));
    line("  --main_process_ip \"$MASTER_ADDR\" --main_process_port \"$MASTER_PORT\"" +
         words(job_.launch_flags) + " \\");
    // An empty array is an unset variable to `set -u` of bash before 4.4.
    line("  " + shell_word(job_.recipe) + words(job_.arguments) +
         " ${resume[@]+\"${resume[@]}\"} &");
    line("step=$!");
  }

  void write_end() {
    line("");
    line(
        "# Told to stop (USR1 before the time limit, TERM at pre-emption): the ranks save and "
        "end.");
    line("stopped=false");
    line("# Not TERM: srun answers it by killing its tasks.");
    line("trap 'stopped=true; kill -USR1 \"$step\"' USR1 TERM");
    line("trap 'kill -USR2 \"$step\"' USR2  # they save and go on");
    line("wait \"$step\"");
    line("code=$?");
    line("while kill -0 \"$step\" 2>/dev/null; do  # a signal only interrupted the wait");
    line("  wait \"$step\"");
    line("  code=$?");
    line("done");
    if (slurm_.requeue) {
      line(fmt::format("if [[ $code -eq {} ]] || [[ $stopped == true && $code -ne 0 ]]; then",
                       kStoppedExitCode));
      line("  scontrol requeue \"$SLURM_JOB_ID\"");
      line("fi");
    }
    line("exit \"$code\"");
  }

  const config::SlurmConfig& slurm_;
  const SlurmJob& job_;
  std::string out_;
};

}  // namespace

std::string slurm_script(const config::SlurmConfig& slurm, const SlurmJob& job) {
  return Script(slurm, job).text();
}

}  // namespace strata::launch
