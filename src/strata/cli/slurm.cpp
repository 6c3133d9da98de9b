// `strata slurm [its flags] [launch flags] (sft | a script's name) [flags]`: a batch script.
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/cli/command.h"
#include "strata/cli/run_sources.h"
#include "strata/config/describe.h"
#include "strata/config/flags.h"
#include "strata/config/recipes.h"
#include "strata/launch/slurm_options.h"
#include "strata/launch/slurm_script.h"
#include "strata/train/loop/schedules.h"

extern char** environ;

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: strata slurm [flags below] [launch flags] sft [flags]\n\n"
    "Writes a batch script that runs the launch line on every machine of a job; with --submit "
    "hands\n"
    "it to sbatch. The settings are checked here first.\n";

// What the script sets on the machines.
constexpr std::string_view kSetByScript[] = {"num_machines", "num_processes", "machine_rank",
                                             "main_process_ip", "main_process_port"};
constexpr std::string_view kResume[] = {"resume_from_checkpoint"};

struct SlurmRequest {
  config::SlurmConfig config;
  bool overwrites = false;
};

SlurmRequest read_slurm_flags(const std::vector<config::Given>& given) {
  config::RunConfig config;
  SlurmRequest request;
  for (const config::Given& one : given) {
    if (one.setting->name == "overwrite") {
      request.overwrites = config::canonical_text(one) == "true";
    } else {
      config::assign(one, config);
    }
  }
  request.config = config.slurm;
  return request;
}

// `asked`: 0 when the flag of sbatch is not there; `known`: the launcher's number, 0 likewise.
int agree(const char* flag, int asked, const char* setting, int known, const std::string& source) {
  if (asked > 0 && known > 0 && asked != known) {
    throw ConfigError("--{}: found {} with {} {} ({}), expected the same; remove one", flag, asked,
                      setting, known, source);
  }
  return asked > 0 ? asked : known;
}

// What counts of a number that the launcher knows: as everywhere a file's gives way to a flag.
int known_size(const config::LaunchLine& line, const char* setting, int value, int asked) {
  const bool is_flag = std::ranges::any_of(
      line.given, [&](const config::Given& given) { return given.setting->name == setting; });
  return asked > 0 && !is_flag ? 0 : value;
}

void settle_size(const config::SlurmConfig& slurm, const config::LaunchLine& line,
                 const config::Settings& settings, launch::SlurmJob& job) {
  const config::LaunchConfig& launch = settings.config.launch;
  const bool is_given = settings.origins.contains("num_machines");
  const int num_machines =
      known_size(line, "num_machines", is_given ? launch.num_machines : 0, slurm.nodes);
  job.num_nodes = std::max(1, agree("nodes", slurm.nodes, "num_machines", num_machines,
                                    settings.source_of("num_machines")));
  const int num_processes =
      known_size(line, "num_processes", launch.num_processes, slurm.gpus_per_node);
  if (num_processes % job.num_nodes != 0) {
    throw ConfigError("num_processes: found {} ({}), expected a multiple of the {} nodes",
                      num_processes, settings.source_of("num_processes"), job.num_nodes);
  }
  const int ranks = agree("gpus_per_node", slurm.gpus_per_node, "num_processes / nodes",
                          num_processes / job.num_nodes, settings.source_of("num_processes"));
  if (launch.cpu && slurm.gpus_per_node > 0) {
    throw ConfigError(
        "--gpus_per_node: found {} with use_cpu true ({}), expected one of them; remove one, or "
        "say how many ranks with --num_processes",
        slurm.gpus_per_node, settings.source_of("use_cpu"));
  }
  if (ranks == 0) {
    throw ConfigError(
        "strata slurm: found no number of ranks, expected one; add --gpus_per_node or "
        "--num_processes");
  }
  job.ranks_per_node = ranks;
  job.uses_gpus = !launch.cpu;
}

launch::SlurmJob make_job(const config::SlurmConfig& slurm,
                          const std::vector<std::string>& arguments) {
  const config::LaunchLine line = read_launch_line(arguments, "slurm");
  // The job reads the same files and flags again; what is wrong is better known before it waits.
  const config::Settings settings = config::resolve({.recipe = recipe_of(line),
                                                     .flags = line.arguments,
                                                     .launch_flags = line.flags,
                                                     .launch_command = "slurm",
                                                     .environment = process_environment(),
                                                     .use_default_file = true});
  config::require_runnable(settings);
  with_sources(settings, [&] { train::require_schedule(settings.config); });
  print_warnings(settings.warnings);
  launch::SlurmJob job{.recipe = line.program,
                       .output_dir = settings.config.train.output_dir,
                       .work_folder = fs::current_path().string()};
  settle_size(slurm, line, settings, job);
  job.launch_flags = config::without_flags(line.flags, kSetByScript);
  job.arguments = config::without_flags(line.arguments, kResume);
  job.resume_from = settings.config.train.resume_from_checkpoint;
  job.program = slurm.program;
  if (job.program.empty()) {
    const bool is_here = slurm.container_image.empty();
    job.program = is_here ? fs::read_symlink("/proc/self/exe").string() : "strata";
  }
  return job;
}

// A script that somebody wrote or changed is not replaced unasked.
void require_replaceable(const std::string& path, const std::string& text, bool overwrites) {
  if (overwrites || !fs::exists(path) || (fs::is_regular_file(path) && read_file(path) == text)) {
    return;
  }
  throw ConfigError(
      "{}: found a file with other content, expected none; pass --overwrite or another --script",
      path);
}

int run_sbatch(const std::string& script) {
  std::string program = "sbatch", file = script;
  char* words[] = {program.data(), file.data(), nullptr};
  pid_t pid = 0;
  std::fflush(nullptr);
  const int error = ::posix_spawnp(&pid, "sbatch", nullptr, nullptr, words, environ);
  if (error != 0) {
    throw ConfigError(
        "sbatch: found {}, expected SLURM's program on PATH; submit {} on a machine of the cluster",
        errno_text(error), script);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) throw IoError("sbatch: found {}, expected its end", errno_text(errno));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int run_slurm(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && wants_help({arguments[0]})) {
    fmt::print("{}{}", kUsage, config::flags_help(config::slurm_settings_table(), help_columns()));
    return 0;
  }
  const config::OwnFlags flags =
      config::take_own_flags(config::slurm_settings_table(), "slurm", arguments);
  print_warnings(flags.own.warnings);
  const auto [slurm, overwrites] = read_slurm_flags(flags.own.given);
  launch::require_slurm_options(slurm);
  const std::string text = launch::slurm_script(slurm, make_job(slurm, flags.rest));
  if (slurm.script.empty() && !slurm.submit) {
    fmt::print("{}", text);
    return 0;
  }
  const std::string path = slurm.script.empty() ? slurm.job_name + ".sbatch" : slurm.script;
  require_replaceable(path, text, overwrites);
  write_file_atomically(path, text);
  fmt::print("{}: written\n", path);
  return slurm.submit ? run_sbatch(path) : 0;
}

}  // namespace strata::cli
