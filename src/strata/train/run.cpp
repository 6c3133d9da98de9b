#include "strata/train/run.h"

#include <algorithm>
#include <chrono>

#include "strata/base/error.h"
#include "strata/base/phases.h"
#include "strata/comm/agreement.h"
#include "strata/comm/mesh.h"
#include "strata/comm/rendezvous.h"
#include "strata/memory/device_probe.h"
#include "strata/memory/plan_text.h"
#include "strata/report/live_line.h"
#include "strata/train/loop/rehearsal.h"
#include "strata/train/loop/trainer.h"
#include "strata/train/planning/batch_size_choice.h"
#include "strata/train/planning/checkpointing_choice.h"
#include "strata/train/planning/memory_watch.h"
#include "strata/train/planning/planned_room.h"
#include "strata/train/saving/result_line.h"
#include "strata/train/saving/results.h"
#include "strata/train/setup/assemble.h"
#include "strata/train/setup/device.h"
#include "strata/train/setup/introduction.h"
#include "strata/train/setup/model_config.h"
#include "strata/train/setup/output_folder.h"
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

// How far the downloads and the tokenizing are: on the terminal of rank 0, or now and then in its
// log.
class PreparationLine {
 public:
  PreparationLine(const Output& output, bool is_main)
      : is_main_(is_main),
        is_terminal_(output.is_terminal),
        write_(output.write),
        line_(output.write, output.columns, is_main && output.is_terminal),
        log_(output.write, std::chrono::seconds(30)) {}

  void show_rows(const std::string& subject, int64_t rows, double part) {
    if (!is_main_) return;
    if (is_terminal_) {
      line_.show(report::preparation_text(subject, rows, part));
    } else {
      log_.show(report::preparation_text(subject, rows, part, /*least=*/1));
    }
  }
  void clear() {
    line_.clear();
    log_.restart();
  }
  void show_download(const std::string& name, int64_t done, int64_t all) {
    if (!is_main_) return;
    const std::string text = report::download_text(name, done, all);
    if (done == all) {
      clear();
      write_(text + "\n");
    } else if (is_terminal_) {
      line_.show(text);
    } else {
      log_.show(text);
    }
  }

 private:
  const bool is_main_;
  const bool is_terminal_;
  std::function<void(std::string_view)> write_;
  report::LiveLine line_;
  report::PeriodicLine log_;
};

// What a run is told, once its ranks have met.
struct RunOrder {
  const config::RunConfig& config;
  const std::string& settings_text;
  const Output& output;
  bool writes_results;
  at::Device device;
  std::vector<std::string>& notes;  // what the person who started it should know
};

// What libtorch says was asked for: the sentence with the size.
std::string wanted_memory(const std::string& message) {
  const size_t found = message.find("Tried to allocate");
  const std::string sentence = message.substr(found == std::string::npos ? 0 : found);
  return sentence.substr(0, sentence.find(". "));
}

// What libraries beside the allocator say when they find no memory for their workspaces.
bool is_out_of_memory(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view message = error.what_without_backtrace();
  return message.find("out of memory") != std::string_view::npos ||
         message.find("CUBLAS_STATUS_ALLOC_FAILED") != std::string_view::npos ||
         message.find("CUDNN_STATUS_ALLOC_FAILED") != std::string_view::npos;
}

// Memory of a GPU that does not suffice becomes an error with the plan beside what was in use.
template <typename Work>
RunResult explaining_memory(const std::optional<MemoryWatch>& watch, at::Device device,
                            const Work& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    if (!device.is_cuda() || !is_out_of_memory(error)) throw;
    const memory::DeviceMemory found = memory::device_memory(device);
    throw OutOfMemoryError(
        "memory of {}: found {} in tensors at most, {} with what the allocator kept and {} free of "
        "{} when more was asked for ({}), expected {}; lower per_device_train_batch_size or "
        "max_length, turn on gradient_checkpointing, quantise the base, or use more ranks",
        // By now the run's own tensors are gone: their peak is what there was.
        device.str(), memory::size_text(found.allocated_peak),
        memory::size_text(found.reserved_peak), memory::size_text(found.free),
        memory::size_text(found.total), wanted_memory(error.what_without_backtrace()),
        watch ? "what was planned (" + watch->planned_line() + ")" : "what rank 0 planned");
  }
}

RunResult train(const RunOrder& order, comm::Mesh& mesh, const Datasets& datasets,
                comm::Group& saving, std::optional<MemoryWatch>& watch, PreparationLine& line,
                Status& status) {
  const config::RunConfig& config = order.config;
  status.set_phase("loading the model");
  const std::unique_ptr<Trainee> trainee = assemble(config, mesh, target_of(order.device));
  // While the weights are those that training starts from.
  const std::unique_ptr<Recipe> recipe =
      make_recipe({.config = config,
                   .trainee = *trainee,
                   .datasets = datasets,
                   .is_kept = order.writes_results,
                   .set_phase = [&](const std::string& phase) { status.set_phase(phase); },
                   .progress = [&](const std::string& subject, int64_t rows,
                                   double part) { line.show_rows(subject, rows, part); },
                   .notes = order.notes});
  line.clear();
  Trainer trainer(config, order.settings_text, *trainee, datasets, *recipe,
                  {.group = saving, .writes_result = order.writes_results}, order.output);
  introduce(config, *trainee, datasets, order.notes, trainer);
  if (watch) {
    trainer.say(watch->planned_line());
    watch->start(*trainee, trainer);
  }
  if (wants_rehearsal(config, *trainee, datasets, trainer.plan(), trainer.global_step())) {
    for (const std::string& found : rehearse(config, *trainee, datasets, *recipe, trainer)) {
      trainer.say(found);
    }
  }

  RunResult result;
  result.train_loss = trainer.run();
  result.global_step = trainer.global_step();
  result.output_dir = config.train.output_dir;
  conclude(config, trainee->store->mesh(), trainer);
  result.is_stopped = trainer.is_stopped();
  if (result.is_stopped || !order.writes_results) return result;
  status.set_phase(kResultPhase);
  write_results(config, *trainee, trainer);
  trainer.catch_up_log();
  if (watch) {
    trainer.say(watch->measured_line());
    if (config.train.wall_clock_breakdown) trainer.say(watch->steady_line());
  }
  for (const std::string& line : refusal_warnings()) trainer.say(line);
  trainer.say(result_line(config, trainee->adapter != nullptr));
  return result;
}

// What the settings leave to the plan.
void choose_by_plan(config::RunConfig& config, const comm::Mesh& mesh, at::Device device,
                    int local_world_size,
                    const std::function<PlanRequest(const config::RunConfig&)>& request,
                    std::vector<std::string>& notes) {
  if (!chooses_checkpointing(config.shard) && !config.train.auto_find_batch_size) return;
  const int64_t room = room_of_run(config, mesh, device, local_world_size);
  if (config.train.auto_find_batch_size) {
    notes.push_back(choose_batch_size(config, mesh, device, room, request));
  }
  if (chooses_checkpointing(config.shard)) {
    notes.push_back(choose_checkpointing(config, mesh, device, room, request(config)));
  }
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
  rendezvous.require_same("settings", settings.hash, settings.lines);
  comm::Mesh mesh = comm::make_mesh(rendezvous, shape);
  // After a restart rank 0's look at the folder counts.
  config.train.resume_from_checkpoint =
      comm::broadcast_string(*mesh.world, config.train.resume_from_checkpoint);

  status.set_phase("preparing the data");
  OutputFolder folder;
  take_output_folder(config, *mesh.world, folder);
  const std::unique_ptr<comm::Group> saving = rendezvous.make_group(
      "saving", {}, {.is_watched = false, .timeout = std::max(meeting.timeout, kLongestSave)});
  PreparationLine line(output, environment.rank == 0);
  const auto show_download = [&](const std::string& name, int64_t done, int64_t all) {
    line.show_download(name, done, all);
  };
  comm::all_or_nothing(*mesh.world, "looking at the model", [&] {
    fetch_model(config.model, show_download);
    require_recipe_of(load_model_config(config.model), config);
  });
  // Before hours may go into the data.
  check_layout(config, mesh, target_of(meeting.device));
  Datasets datasets;
  comm::all_or_nothing(*mesh.world, "preparing the data", [&] {
    datasets = load_datasets(config, read_model_limits(config.model),
                             {.progress = [&](const std::string& subject, int64_t rows,
                                              double part) { line.show_rows(subject, rows, part); },
                              .download_progress = show_download,
                              .data_parallel_size = mesh.data_parallel_size()});
  });
  std::vector<std::string> notes = folder.notes;
  notes.insert(notes.end(), datasets.notes.begin(), datasets.notes.end());
  if (config.train.tf32 && !meeting.device.is_cuda()) {
    notes.push_back("warning: tf32: has no effect; fp32 products of a CPU keep 24 bits");
  }
  const auto request = [&](const config::RunConfig& planned) {
    return plan_request(planned, mesh, environment.local_world_size, datasets, meeting.device);
  };
  choose_by_plan(config, mesh, meeting.device, environment.local_world_size, request, notes);
  // Only rank 0 tells; the others hold as much.
  std::optional<MemoryWatch> watch;
  if (environment.rank == 0) watch.emplace(config, request(config), meeting.device);
  return explaining_memory(watch, meeting.device, [&] {
    return train({config, settings.json, output, writes_results, meeting.device, notes}, mesh,
                 datasets, *saving, watch, line, status);
  });
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
