#include "strata/train/run.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "strata/base/counted.h"
#include "strata/base/phases.h"
#include "strata/comm/agreement.h"
#include "strata/comm/device_group.h"
#include "strata/comm/mesh.h"
#include "strata/comm/rendezvous.h"
#include "strata/comm/told_once.h"
#include "strata/config/recipes.h"
#include "strata/train/labels.h"
#include "strata/train/loop/answers.h"
#include "strata/train/loop/rehearsal.h"
#include "strata/train/loop/trainer.h"
#include "strata/train/planning/batch_size_choice.h"
#include "strata/train/planning/checkpointing_choice.h"
#include "strata/train/planning/memory_error.h"
#include "strata/train/planning/memory_watch.h"
#include "strata/train/planning/planned_room.h"
#include "strata/train/same_inputs.h"
#include "strata/train/saving/result_line.h"
#include "strata/train/saving/results.h"
#include "strata/train/saving/resume.h"
#include "strata/train/setup/assemble.h"
#include "strata/train/setup/device.h"
#include "strata/train/setup/gpu_sharing.h"
#include "strata/train/setup/introduction.h"
#include "strata/train/setup/model_config.h"
#include "strata/train/setup/output_folder.h"
#include "strata/train/setup/preparation_line.h"
#include "strata/train/setup/strategy.h"

namespace strata::train {
namespace {

// One rank's disk may be slower than another's by hours, which harms nobody; who is gone is noticed
// without a time-out.
constexpr std::chrono::seconds kLongestSave = std::chrono::hours(24);

comm::RendezvousOptions rendezvous_options(const config::RunConfig& config,
                                           const launch::RankEnvironment& environment,
                                           const Output& output, Status& status) {
  comm::RendezvousOptions options;
  options.status = &status;
  // One voice a machine.
  if (environment.rank == 0 || environment.local_rank == 0) {
    options.say = [&output](const std::string& line) { output.write(line + "\n"); };
  }
  options.rank = environment.rank;
  options.world_size = environment.world_size;
  options.address = environment.master_addr;
  options.port = environment.master_port;
  options.listen_descriptor = environment.listen_descriptor;
  if (environment.join_timeout_s > 0) {
    options.join_timeout = std::chrono::seconds(environment.join_timeout_s);
  }
  options.timeout = std::chrono::seconds(config.shard.ddp_timeout_s);
  options.device = device_of_rank(config, environment.local_rank);
  return options;
}

// What a run works with, once its ranks have met and its data are there.
struct PreparedRun {
  const config::RunConfig& config;
  const SettingsText& settings;
  const Output& output;
  Status& status;
  PreparationLine& line;
  bool writes_results;
  at::Device device;
  comm::Mesh& mesh;
  comm::Group& saving;
  const Datasets& datasets;
  std::vector<std::string>& notes;    // what the person who started it should know
  std::optional<MemoryWatch>& watch;  // only rank 0 tells; the others hold as much
};

// Reads the weights that training starts from where the recipe needs to know something of them.
std::unique_ptr<Recipe> prepare_recipe(const PreparedRun& run, Trainee& trainee) {
  auto recipe =
      make_recipe({.config = run.config,
                   .trainee = trainee,
                   .datasets = run.datasets,
                   .is_kept = run.writes_results,
                   .set_phase = [&](const std::string& phase) { run.status.set_phase(phase); },
                   .progress = run.line.row_progress(),
                   .notes = run.notes});
  run.line.clear();
  return recipe;
}

void introduce_and_rehearse(const PreparedRun& run, Trainee& trainee, Recipe& recipe,
                            Trainer& trainer) {
  recipe.begin(trainer.global_step());
  run.line.clear();
  introduce(run.config, trainee, run.datasets, run.notes, trainer);
  if (run.watch) {
    trainer.say(run.watch->planned_line());
    run.watch->start(trainee, trainer);
  }
  if (!wants_rehearsal(run.config, trainee, run.datasets, trainer.plan(), trainer.global_step())) {
    return;
  }
  for (const std::string& found : rehearse(run.config, trainee, run.datasets, recipe, trainer)) {
    trainer.say(found);
  }
}

void write_and_tell_results(const PreparedRun& run, Trainee& trainee, Trainer& trainer) {
  run.status.set_phase(kResultPhase);
  write_results(run.config, trainee, trainer);
  trainer.catch_up_log();
  if (run.watch) {
    trainer.say(run.watch->measured_line());
    if (run.config.train.wall_clock_breakdown) trainer.say(run.watch->steady_line());
  }
  for (const std::string& line : refusal_warnings()) trainer.say(line);
  trainer.say(result_line(run.config, trainee.adapter != nullptr));
}

RunResult train(const PreparedRun& run) {
  run.status.set_phase("loading the model");
  const std::unique_ptr<Trainee> trainee = assemble(run.config, run.mesh, target_of(run.device));
  const std::unique_ptr<Recipe> recipe = prepare_recipe(run, *trainee);
  Trainer trainer(run.config, run.settings.json, *trainee, run.datasets, *recipe,
                  {.group = run.saving, .writes_result = run.writes_results}, run.output);
  introduce_and_rehearse(run, *trainee, *recipe, trainer);

  RunResult result;
  result.train_loss = trainer.run();
  result.global_step = trainer.global_step();
  result.output_dir = run.config.train.output_dir;
  conclude(run.config, trainee->store->mesh(), trainer);
  result.is_stopped = trainer.is_stopped();
  if (!result.is_stopped && run.writes_results) write_and_tell_results(run, *trainee, trainer);
  return result;
}

// Ranks that differ in what their groups are made of would wait for each other until a time-out.
void require_alike(comm::Rendezvous& rendezvous, const SettingsText& settings,
                   const comm::MeshShape& shape, const launch::RankEnvironment& environment) {
  const std::string device = rendezvous.options().device.is_cuda() ? "GPU" : "CPU";
  const std::string own = fmt::format("computes on a {}\nshard groups of {}", device,
                                      counted(shape.shard_size, "rank"));
  const std::string origin =
      fmt::format("  # of {} on this machine", counted(environment.local_world_size, "rank"));
  rendezvous.require_same("settings", settings.hash + "\n" + own,
                          settings.lines + own + origin + "\n");
}

// The ranks that compute where this one does.
struct Sharing {
  int num_ranks = 1;
  std::optional<std::string> warning = {};
};

// Collective.
Sharing sharing_of(comm::Rendezvous& rendezvous, const launch::RankEnvironment& environment) {
  if (!rendezvous.options().device.is_cuda()) return {.num_ranks = environment.local_world_size};
  std::vector<int> ranks(static_cast<size_t>(environment.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<std::string> gpus = comm::names_of_gpus(rendezvous, ranks);
  return {.num_ranks = count_sharers(gpus, environment.rank), .warning = sharing_warning(gpus)};
}

// What the memory of a run is planned from.
struct Planning {
  config::RunConfig& config;
  const comm::Mesh& mesh;
  at::Device device;
  int num_sharers;  // the ranks that compute where this one does
  std::function<PlanRequest(const config::RunConfig&)> request;
  std::vector<std::string>& notes;
};

// What the settings leave to the plan.
void choose_by_plan(const Planning& plan) {
  config::RunConfig& config = plan.config;
  if (!chooses_checkpointing(config.shard) && !config.train.auto_find_batch_size) return;
  const int64_t room = room_of_run(config, plan.mesh, plan.device, plan.num_sharers);
  if (config.train.auto_find_batch_size) {
    plan.notes.push_back(choose_batch_size(config, plan.mesh, plan.device, room, plan.request));
  }
  if (chooses_checkpointing(config.shard)) {
    plan.notes.push_back(
        choose_checkpointing(config, plan.mesh, plan.device, room, plan.request(config)));
  }
}

// Ranks that have read other rows would make other steps of them: the run would train on some rows
// twice and on others never, or end in the middle of an epoch.
void require_same_inputs(comm::Rendezvous& rendezvous, const config::RunConfig& config,
                         const Datasets& datasets) {
  std::string text;
  if (rendezvous.options().world_size > 1) text = inputs_text(config, datasets);
  rendezvous.require_same("model and data", text, text);
}

// Model and data from where the settings say, each rank's part of them. Before hours may go into
// the data, what the model and the settings contradict each other in is an error.
Datasets fetch_and_prepare(const config::RunConfig& config, comm::Mesh& mesh, at::Device device,
                           PreparationLine& line) {
  const hf::DownloadProgress show_download = {
      .came = [&](const std::string& name, int64_t done,
                  int64_t all) { line.show_download(name, done, all); },
      .say = line.lines()};
  comm::all_or_nothing_told_once(*mesh.world, "looking at the model", [&] {
    fetch_model(config.model, show_download);
    require_recipe_of(load_model_config(config.model), config);
  });
  check_layout(config, mesh, target_of(device));
  Datasets datasets;
  comm::all_or_nothing_told_once(*mesh.world, "preparing the data", [&] {
    datasets = load_datasets(config, read_model_limits(config.model),
                             {.progress = line.row_progress(),
                              .download_progress = show_download,
                              .say = line.lines(),
                              .data_parallel_size = mesh.data_parallel_size()});
  });
  return datasets;
}

std::vector<std::string> notes_of_preparation(const config::RunConfig& config,
                                              const OutputFolder& folder, const Datasets& datasets,
                                              at::Device device) {
  std::vector<std::string> notes = folder.notes;
  notes.insert(notes.end(), datasets.notes.begin(), datasets.notes.end());
  if (config.train.tf32 && !device.is_cuda()) {
    notes.emplace_back("warning: tf32: has no effect; fp32 products of a CPU keep 24 bits");
  }
  for (std::string& line : answer_warnings(config)) notes.push_back(std::move(line));
  return notes;
}

// For a resumed run: notes about the checkpoint that it resumes from.
void look_at_checkpoints(const config::RunConfig& config, const SettingsText& settings,
                         comm::Group& world, OutputFolder& folder) {
  if (config.train.resume_from_checkpoint.empty()) return;
  comm::all_or_nothing(world, "looking for checkpoints", [&] {
    if (world.rank() != 0) return;
    for (std::string& line : look_for_checkpoint(config.train, settings.json)) {
      folder.notes.push_back(std::move(line));
    }
  });
}

// What the data say of the labels, where a recipe reads some. Collective.
void take_labels(config::RunConfig& config, const comm::Mesh& mesh, const Datasets& datasets,
                 std::vector<std::string>& notes) {
  if (!config::recipe_of(config).reads_labels) return;
  comm::all_or_nothing_told_once(*mesh.world, "looking at the labels", [&] {
    settle_labels(datasets, config_with_labels(config.model), config, notes);
  });
}

// Rank 0's; nothing on others.
std::optional<MemoryWatch> watch_memory(const Planning& plan) {
  if (plan.mesh.world->rank() != 0) return std::nullopt;
  const PlanRequest own = plan.request(plan.config);
  std::optional<MemoryWatch> watch;
  watch.emplace(plan.config, own, plan.device);
  const std::optional<std::string> hint =
      recomputation_hint(plan.config, plan.device, plan.num_sharers, own);
  if (hint) plan.notes.push_back(*hint);
  return watch;
}

// Before the weights are loaded: a process that the system ends for its memory says nothing.
void warn_of_shortage(const Planning& plan, const std::optional<MemoryWatch>& watch,
                      const Output& output) {
  const std::optional<std::string> shortage =
      memory_warning(plan.mesh, plan.device, plan.num_sharers,
                     watch ? watch->bytes_to_come() : std::optional<int64_t>());
  if (shortage) output.write(*shortage + "\n");
}

// What the plan decides and foretells; the watch of rank 0. Collective.
std::optional<MemoryWatch> settle_memory(const Planning& plan, const Output& output) {
  choose_by_plan(plan);
  std::optional<MemoryWatch> watch = watch_memory(plan);
  warn_of_shortage(plan, watch, output);
  return watch;
}

RunResult train_within_memory(const PreparedRun& run) {
  try {
    return train(run);
  } catch (const c10::Error& error) {
    if (!run.device.is_cuda() || !is_out_of_memory(error)) throw;
    throw memory_error(error, run.device, run.watch ? &*run.watch : nullptr);
  }
}

// A run whose ranks have met.
struct MetRun {
  config::RunConfig& config;
  const launch::RankEnvironment& environment;
  const SettingsText& settings;
  const Output& output;
  Status& status;
  comm::Rendezvous& rendezvous;
  comm::Mesh& mesh;
  const Sharing& sharing;
  bool writes_results;
};

RunResult prepare_and_train(const MetRun& met) {
  config::RunConfig& config = met.config;
  comm::Mesh& mesh = met.mesh;
  const comm::RendezvousOptions& meeting = met.rendezvous.options();
  const at::Device device = meeting.device;
  met.status.set_phase("preparing the data");
  OutputFolder folder;
  take_output_folder(config, *mesh.world, folder);
  look_at_checkpoints(config, met.settings, *mesh.world, folder);
  const std::unique_ptr<comm::Group> saving = met.rendezvous.make_group(
      "saving", {}, {.is_watched = false, .timeout = std::max(meeting.timeout, kLongestSave)});
  PreparationLine line(met.output, met.environment.rank == 0);
  const Datasets datasets = fetch_and_prepare(config, mesh, device, line);
  require_same_inputs(met.rendezvous, config, datasets);
  std::vector<std::string> notes = notes_of_preparation(config, folder, datasets, device);
  if (met.sharing.warning) notes.push_back(*met.sharing.warning);
  take_labels(config, mesh, datasets, notes);

  const auto request = [&](const config::RunConfig& planned) {
    return plan_request(planned, mesh, met.environment.local_world_size, datasets, device);
  };
  std::optional<MemoryWatch> watch = settle_memory({.config = config,
                                                    .mesh = mesh,
                                                    .device = device,
                                                    .num_sharers = met.sharing.num_ranks,
                                                    .request = request,
                                                    .notes = notes},
                                                   met.output);
  return train_within_memory({.config = config,
                              .settings = met.settings,
                              .output = met.output,
                              .status = met.status,
                              .line = line,
                              .writes_results = met.writes_results,
                              .device = device,
                              .mesh = mesh,
                              .saving = *saving,
                              .datasets = datasets,
                              .notes = notes,
                              .watch = watch});
}

RunResult run(config::RunConfig config, const launch::RankEnvironment& environment,
              const SettingsText& settings, const Output& output, bool writes_results) {
  // Checked before the ranks meet: each says what is wrong, none that another one is gone.
  const comm::MeshShape shape =
      mesh_shape(config.shard, environment.world_size, environment.local_world_size);
  comm::check_mesh_shape(environment.world_size, shape);
  Status unseen;
  Status& status = output.status != nullptr ? *output.status : unseen;
  status.set_phase("meeting the other ranks");
  const comm::RendezvousOptions meeting = rendezvous_options(config, environment, output, status);
  open_device(config, meeting.device);
  comm::Rendezvous rendezvous(meeting);
  require_alike(rendezvous, settings, shape, environment);
  const Sharing sharing = sharing_of(rendezvous, environment);
  comm::Mesh mesh = comm::make_mesh(rendezvous, shape);
  // After a restart rank 0's look at the folder counts.
  config.train.resume_from_checkpoint =
      comm::broadcast_string(*mesh.world, config.train.resume_from_checkpoint);
  return prepare_and_train({.config = config,
                            .environment = environment,
                            .settings = settings,
                            .output = output,
                            .status = status,
                            .rendezvous = rendezvous,
                            .mesh = mesh,
                            .sharing = sharing,
                            .writes_results = writes_results});
}

}  // namespace

RunResult run_recipe(const config::RunConfig& config, const launch::RankEnvironment& environment,
                     const SettingsText& settings, const Output& output) {
  return run(config, environment, settings, output, /*writes_results=*/true);
}

RunResult run_steps(const config::RunConfig& config, const launch::RankEnvironment& environment,
                    const SettingsText& settings, const Output& output) {
  return run(config, environment, settings, output, /*writes_results=*/false);
}

}  // namespace strata::train
