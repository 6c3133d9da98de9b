// `strata launch [launch flags] (a recipe | a script's name) [flags]`.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/near_path.h"
#include "strata/base/stop_request.h"
#include "strata/checkpoint/folders.h"
#include "strata/cli/command.h"
#include "strata/cli/early_stop.h"
#include "strata/cli/plan_report.h"
#include "strata/cli/run_sources.h"
#include "strata/cli/standard_streams.h"
#include "strata/config/describe.h"
#include "strata/config/flags.h"
#include "strata/config/recipes.h"
#include "strata/data/files/split_spec.h"
#include "strata/hf/hub/download.h"
#include "strata/launch/address.h"
#include "strata/launch/rendezvous_conf.h"
#include "strata/launch/restarts.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/schedules.h"
#include "strata/train/setup/assemble.h"
#include "strata/train/setup/device.h"
#include "strata/train/setup/model_config.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: strata launch [launch flags] RECIPE [flags]            one of {}\n"
    "       strata launch [launch flags] train.py [flags]          the recipe that stands for it\n"
    "       strata launch [launch flags] --no_python PROGRAM [arguments]\n\n"
    "Starts one process per rank on this machine. Flags of the recipe: strata sft --help.\n";

// While the other machines are waited for, which may be after ranks of this run have failed.
constexpr const char* kStoppedWithoutRanks =
    "\n"
    "stopped on request while no ranks ran: start it again (a run that has saved something "
    "continues with --resume_from_checkpoint true)\n";

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// `recipe`: empty for a program of the user's own.
std::vector<std::string> rank_command(const config::LaunchLine& line, const std::string& recipe) {
  std::vector<std::string> command;
  if (recipe.empty()) {
    command = {line.program};
  } else {
    command = {fs::read_symlink("/proc/self/exe").string(), command_of_recipe(recipe)};
  }
  command.insert(command.end(), line.arguments.begin(), line.arguments.end());
  return command;
}

bool is_own_program(const config::LaunchLine& line) {
  for (const config::Given& given : line.given) {
    if (given.setting->name == "no_python") return config::canonical_text(given) == "true";
  }
  return false;
}

// `recipe`: empty for a program of the user's own, whose arguments are its own.
config::Sources sources_of(const config::LaunchLine& line, const std::string& recipe) {
  config::Sources sources{.recipe = recipe,
                          .launch_flags = line.flags,
                          .environment = process_environment(),
                          .use_default_file = true};
  if (!recipe.empty()) sources.flags = line.arguments;
  return sources;
}

// Here once, so that a wrong setting is one message and no rank starts.
config::Settings settle_settings(const config::Sources& sources) {
  config::Settings settings = config::resolve(sources);
  if (!sources.recipe.empty()) config::require_runnable(settings);
  print_warnings(settings.warnings);
  const config::LaunchConfig& launch = settings.config.launch;
  if (launch.num_machines > 1 || launch.num_processes > 1) {
    with_sources(settings,
                 [&] { launch::require_known_host("main_process_ip", launch.main_process_ip); });
  }
  return settings;
}

// Warns of accelerators that a recipe leaves idle although nobody said so.
void warn_of_machine(const config::LaunchConfig& launch, const launch::MachineFacts& machine) {
  if (kHasCuda || launch.cpu || machine.num_devices == 0) return;
  print_warnings({fmt::format(
      "cpu: found {} accelerator{} that this build does not use, it computes on the CPU; pass "
      "--cpu to say so",
      machine.num_devices, machine.num_devices == 1 ? "" : "s")});
}

bool uses_gpus(const config::LaunchConfig& launch, const launch::MachineFacts& machine) {
  return kHasCuda && !launch.cpu && machine.num_devices > 0;
}

// Warns of ranks that take turns on the device that they compute on.
void warn_of_crowd(const config::LaunchConfig& launch, const launch::MachineFacts& machine,
                   int ranks) {
  if (launch.dry_run) return;
  if (uses_gpus(launch, machine)) {
    if (ranks <= machine.num_devices) return;
    print_warnings({fmt::format(
        "num_processes: found {} ranks for {} that this machine shows, they share them and "
        "exchange through host memory, which is slow; start as many as there are, or look at "
        "CUDA_VISIBLE_DEVICES",
        ranks, counted(machine.num_devices, "GPU"))});
    return;
  }
  if (ranks <= machine.num_cores) return;
  print_warnings(
      {fmt::format("num_processes: found {} ranks for {} of this machine, they take turns; more "
                   "ranks than processors make a run slower",
                   ranks, counted(machine.num_cores, "processor"))});
}

launch::LaunchPlan settle_plan(const config::LaunchLine& line, const std::string& recipe,
                               const config::Settings& settings, double start_time) {
  const config::LaunchConfig& launch = settings.config.launch;
  return with_sources(settings, [&] {
    const launch::MachineFacts machine = launch::inspect_machine(launch);
    if (!recipe.empty()) warn_of_machine(launch, machine);
    launch::LaunchPlan plan =
        launch::plan_launch(launch, machine, rank_command(line, recipe), start_time);
    if (!recipe.empty()) warn_of_crowd(launch, machine, plan.local_world_size);
    return plan;
  });
}

// What is not there is one message here instead of one of every rank. Asks nobody over the network:
// what of the Hub is not in the cache yet is the ranks' to find.
void require_inputs(const config::RunConfig& config) {
  const auto may_come = [&](const std::string& name, hf::HubKind kind) {
    if (!hf::is_hub_name(name)) return false;
    hf::HubRequest request{.kind = kind, .name = name, .cache = config.model.cache_dir};
    if (kind == hf::HubKind::kModel) request.revision = config.model.model_revision;
    return !hf::is_offline() || hf::has_snapshot(request);
  };
  const std::string& model = config.model.model_name_or_path;
  if (model.empty() || fs::exists(model) || !may_come(model, hf::HubKind::kModel)) {
    train::load_model_config(config.model, /*alone=*/true);
  }
  const std::string& names = train::data_name(config.data);
  const auto is_there = [](const std::string& name) {
    return fs::exists(name) || name.find_first_of("*?[") != std::string::npos;
  };
  if (is_there(names)) return;  // a path may hold a comma
  for (const std::string& name : data::split_list(names)) {
    if (is_there(name) || may_come(name, hf::HubKind::kDataset)) continue;
    throw IoError("{}: found no such file or folder, expected the data of {}; check the path{}",
                  name, config.data.dataset_name.empty() ? "train_file" : "dataset_name",
                  did_you_mean(name));
  }
}

// Of a model on this machine's disks: what the settings make of it, which every rank would say.
void require_layout(const config::RunConfig& config, const launch::LaunchPlan& plan) {
  const config::ModelConfig& model = config.model;
  for (const std::string* name : {&model.model_name_or_path, &model.config_name,
                                  &model.tokenizer_name, &config.model.adapter_name_or_path}) {
    if (!name->empty() && !fs::exists(*name)) return;
  }
  const bool on_gpus = uses_gpus(config.launch, launch::inspect_machine(config.launch));
  train::check_layout(config, plan.world_size, plan.local_world_size,
                      train::target_of(on_gpus ? at::kCUDA : at::kCPU));
}

void watch_for_hangs(const config::RunConfig& config, bool own_program, launch::LaunchPlan& plan) {
  const config::LaunchConfig& launch = config.launch;
  // Before the ranks give up by themselves, who cannot tell where the others are.
  plan.hang_timeout = launch.hang_timeout_s > 0
                          ? std::chrono::seconds(launch.hang_timeout_s)
                          : std::chrono::milliseconds(config.shard.ddp_timeout_s * 900);
  plan.stack_dir = !launch.log_dir.empty() ? launch.log_dir
                   : own_program           ? "."
                                           : config.train.output_dir;
}

int run_ranks(const config::LaunchConfig& launch, launch::LaunchPlan& plan) {
  const launch::RendezvousConf conf = launch::parse_rendezvous_conf(launch.rdzv_conf);
  for (const std::string& key : conf.without_effect) {
    print_warnings({fmt::format("rdzv_conf: {} has no effect here", key)});
  }
  if (conf.is_host && launch.rdzv_backend == config::RendezvousBackend::kStatic) {
    print_warnings(
        {"rdzv_conf: is_host has no effect with rdzv_backend static, where machine 0 serves"});
  }
  std::fflush(nullptr);
  if (!launch::uses_meeting(launch)) return launch::run_with_restarts(plan, {});
  launch::MeetingOptions options =
      launch::meeting_options(launch, plan.world_size, plan.launch_time);
  options.say = [](const std::string& line) { tell("{}\n", line); };
  launch::Meeting meeting(options);
  return launch::run_with_restarts(plan, {.meeting = &meeting});
}

// Ranks that failed, or were told to end at once, say nothing: where their run can go on.
void tell_what_is_left(const config::RunConfig& config, int exit_code, double start_time) {
  const bool is_interrupted = std::ranges::any_of(
      std::array{SIGINT, SIGTERM, SIGHUP}, [&](int signal) { return exit_code == 128 + signal; });
  // Ranks that saved themselves have said so.
  if (exit_code == 0 || exit_code == launch::kStoppedExitCode) return;
  const fs::path folder = config.train.output_dir;
  const bool is_continued = checkpoint::means_newest(config.train.resume_from_checkpoint);
  std::string saved = checkpoint::saved_since(folder, start_time);
  // What fails before it has saved anything may fail again from where it began.
  if (saved.empty() && !is_interrupted) return;
  if (saved.empty() && is_continued) saved = "true";
  if (!saved.empty() && !checkpoint::list(folder).empty()) {
    const fs::path newest = checkpoint::candidates(saved, folder).front();
    tell("{}: {} is the newest checkpoint; continue from it with --resume_from_checkpoint {}\n",
         is_interrupted ? "interrupted" : "failed", newest.string(), saved);
  } else {
    tell("interrupted: this run has saved nothing yet\n");
  }
}

}  // namespace

int run_launch(const std::vector<std::string>& arguments) {
  const double start_time = seconds_since_1970();
  if (!arguments.empty() && wants_help({arguments[0]})) {
    fmt::print("{}{}", fmt::format(fmt::runtime(kUsage), config::recipe_commands()),
               config::flags_help(config::Scope::kLaunch, help_columns()));
    return 0;
  }
  const config::LaunchLine line = read_launch_line(arguments, "launch");
  const bool own_program = is_own_program(line);
  const std::string recipe = own_program ? "" : recipe_of(line);
  if (!own_program && wants_help(line.arguments)) {
    return run_recipe(config::recipe_named(command_of_recipe(recipe)), {"--help"});
  }
  if (own_program) {
    release_stop_requests();
  } else {
    end_on_early_request(kStoppedWithoutRanks);
  }
  config::Sources sources = sources_of(line, recipe);
  const config::Settings settings = settle_settings(sources);
  launch::LaunchPlan plan = settle_plan(line, recipe, settings, start_time);
  if (!own_program) {
    // Once more with the number of ranks, which a ds_config's batch sizes have to fit.
    sources.world_size = plan.world_size;
    const config::Settings of_ranks = config::resolve(sources);
    if (of_ranks.config.launch.dry_run) {
      fmt::print("{}",
                 with_sources(of_ranks, [&] { return dry_run_report(of_ranks, plan.world_size); }));
      return 0;
    }
    with_sources(of_ranks, [&] { train::require_schedule(of_ranks.config); });
    require_inputs(settings.config);
    with_sources(of_ranks, [&] { require_layout(of_ranks.config, plan); });
  }
  outlive_readers();
  watch_for_hangs(settings.config, own_program, plan);
  plan.runs_recipe = !own_program;
  plan.environment.emplace_back(kLaunchFlagsVariable, launch_flags_value(line.flags));
  if (!own_program) plan.environment.emplace_back(kRecipeVariable, recipe);
  const int exit_code =
      with_sources(settings, [&] { return run_ranks(settings.config.launch, plan); });
  std::signal(SIGUSR1, SIG_IGN);  // nothing is left to stop
  if (!own_program) tell_what_is_left(settings.config, exit_code, start_time);
  return exit_code;
}

}  // namespace strata::cli
