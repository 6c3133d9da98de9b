#include "strata/train/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/folder_lock.h"
#include "strata/base/phases.h"
#include "strata/checkpoint/repair.h"
#include "strata/comm/agreement.h"
#include "strata/comm/mesh.h"
#include "strata/comm/rendezvous.h"
#include "strata/memory/device_probe.h"
#include "strata/memory/plan_text.h"
#include "strata/models/footprint.h"
#include "strata/report/live_line.h"
#include "strata/train/base_quantization.h"
#include "strata/train/device.h"
#include "strata/train/memory_watch.h"
#include "strata/train/offload.h"
#include "strata/train/preflight.h"
#include "strata/train/rehearsal.h"
#include "strata/train/results.h"
#include "strata/train/strategy.h"
#include "strata/train/trainer.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

comm::RendezvousOptions rendezvous_options(const config::RunConfig& config,
                                           const launch::RankEnvironment& environment,
                                           Status& status) {
  comm::RendezvousOptions options;
  options.status = &status;
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

// What was found to do, a sentence each.
std::vector<std::string> check_output_folder(const config::RunConfig& config) {
  std::vector<std::string> done = checkpoint::finish_interrupted(config.train.output_dir);
  // What an interrupted save of an earlier run left is not a checkpoint and never will be.
  constexpr std::string_view kWritten[] = {"checkpoint-", "model",         "adapter",
                                           "latest",      "metrics.jsonl", "trainer_state.json",
                                           "report.html", "config.json",   "tokenizer"};
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(config.train.output_dir)) {
    const std::string name = entry.path().filename().string();
    const size_t end = name.find(".tmp-");  // .tmp-PID, .tmp-removed
    if (end == std::string::npos) continue;
    const std::string_view rest = std::string_view(name).substr(end + 5);
    const bool is_number = rest.find_first_not_of("0123456789") == std::string_view::npos;
    if (rest != "removed" && (rest.empty() || !is_number)) continue;
    const bool is_own = std::ranges::any_of(
        kWritten, [&](std::string_view written) { return name.starts_with(written); });
    if (is_own && (entry.is_regular_file() || name.starts_with("checkpoint-"))) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& path : left) fs::remove_all(path);
  return done;
}

// A folder that holds both a model and an adapter means another thing to every tool that loads it.
void check_kind_of_result(const config::RunConfig& config) {
  const fs::path folder = config.train.output_dir;
  const bool makes_adapter = config.lora.use_peft || !config.model.adapter_name_or_path.empty();
  const char* other = makes_adapter ? "config.json" : "adapter_config.json";
  if (!fs::exists(folder / other)) return;
  throw ConfigError(
      "output_dir: found {} of an earlier run in {}, expected no {} beside the {} that this run "
      "writes; choose another folder",
      other, folder.string(), makes_adapter ? "model" : "adapter",
      makes_adapter ? "adapter" : "model");
}

const char* name_of_compute(at::ScalarType type) {
  return type == at::kFloat ? "fp32" : type == at::kHalf ? "fp16" : "bf16";
}

// Rank 0's: the lock while the run lasts, and what its user should know.
struct OutputFolder {
  std::optional<FolderLock> lock;
  std::vector<std::string> notes;
};

// On its own, before the data: rank 0's error must not wait until the others have read theirs.
void take_output_folder(const config::RunConfig& config, comm::Group& world, OutputFolder& taken) {
  const fs::path folder = config.train.output_dir;
  std::string owner;
  comm::all_or_nothing(world, "preparing the output folder", [&] {
    check_offload_folders(config.shard);
    if (world.rank() != 0) return;
    require_writable_folder(folder);
    taken.lock.emplace(folder);
    owner = taken.lock->owner();
    taken.notes = check_output_folder(config);
    if (taken.lock->is_by_name()) {
      taken.notes.push_back(
          fmt::format("output_dir: the file system of {} has no locks (flock); the file "
                      ".lock-owner in it keeps "
                      "other runs out",
                      folder.string()));
    }
    check_kind_of_result(config);
  });
  owner = comm::broadcast_string(world, owner);
  comm::all_or_nothing(world, "looking at the output folder", [&] {
    if (world.rank() != 0) require_shared_folder(folder, world.rank(), owner);
  });
}

void describe_weights(const config::RunConfig& config, const Trainee& trainee, Trainer& trainer) {
  int64_t num_quantized = 0;
  const nn::Parameter* quantized = nullptr;
  std::set<at::ScalarType> plain;
  for (const nn::Parameter* parameter : trainee.model->parameters()) {
    if (!parameter->quantization()) {
      plain.insert(parameter->storage_type());
      continue;
    }
    quantized = parameter;
    ++num_quantized;
  }
  const int64_t bytes = models::memory_footprint_bytes(*trainee.model);
  trainer.say(fmt::format("memory footprint: {} bytes ({:.2f} MB)", bytes,
                          static_cast<double>(bytes) / 1e6));
  if (quantized == nullptr) return;
  trainer.say(fmt::format(
      "quantised base: {} matrices as {}, frozen, their scales take {} bytes; norms, embeddings "
      "and output layer rest in {} and are computed in {}, the first layer's input requires a "
      "gradient, activations are {}",
      num_quantized, ops::quant::describe(quantized->quantization()->format),
      models::scale_bytes(*trainee.model),
      plain.contains(at::kBFloat16) || plain.contains(at::kHalf) ? "the file's type" : "fp32",
      name_of_compute(trainee.compute_type),
      config.shard.gradient_checkpointing ? "checkpointed" : "kept"));
}

void introduce(const config::RunConfig& config, Trainee& trainee, const Datasets& datasets,
               Trainer& trainer) {
  const comm::Mesh& mesh = trainee.store->mesh();
  trainer.say(adapters::trainable_parameters_line(*trainee.model));
  describe_weights(config, trainee, trainer);
  for (const std::string& line : quantization_warnings(config.quantization, trainee.model_config))
    trainer.say("warning: " + line);
  trainer.say(
      fmt::format("{} rank{} ({}), {}, {} rows of {} tokens, {} steps of {} rows, masters fp32, "
                  "computing in {} on {}",
                  mesh.world->size(), mesh.world->size() == 1 ? "" : "s", mesh.world->transport(),
                  config.shard.sharding_strategy, datasets.train.size(),
                  datasets.train.stats().num_tokens, trainer.plan().max_steps,
                  config.train.per_device_train_batch_size * mesh.world->size() *
                      config.train.gradient_accumulation_steps,
                  name_of_compute(trainee.compute_type),
                  trainee.store->options().device.is_cuda() ? trainee.store->options().device.str()
                                                            : "the CPU"));
  if (config.shard.bf16 && trainee.compute_type == at::kFloat) {
    trainer.say(
        "bf16: this CPU has no bf16 arithmetic, computing in fp32 instead (faster here, and "
        "more exact)");
  }
  if (config.shard.fp16 && trainee.compute_type == at::kFloat) {
    trainer.say(
        "fp16: weights are rounded to fp16 when they are gathered, products are computed in fp32");
  }
  if (config.shard.sharding_strategy.starts_with("HYBRID") && mesh.replicate->size() == 1) {
    trainer.say(fmt::format(
        "{}: all ranks are in one shard group, which is {} here", config.shard.sharding_strategy,
        config.shard.sharding_strategy == "HYBRID_SHARD" ? "FULL_SHARD" : "SHARD_GRAD_OP"));
  }
  if (trainee.adapter) {
    for (const std::string& note : trainee.adapter->notes()) trainer.say("note: " + note);
  }
  for (const std::string& line :
       describe_load_memory(trainee.load_memory, trainee.store->options().device))
    trainer.say(line);
  for (const std::string& line :
       describe_offload(config.shard, trainee.offload, trainee.store->options().device))
    trainer.say(line);
  for (const std::string& note : datasets.notes) trainer.say(note);
  for (const std::string& line : datasets.warnings) trainer.say("warning: " + line);
  for (const std::string& line : describe_losses(datasets.train.stats(), config.data)) {
    trainer.say(line);
  }
}

// What the public script for such models prints after its last epoch.
std::vector<std::string> seq2seq_lines(const config::RunConfig& config, const Trainer& trainer) {
  const report::TrainerState state = trainer.state();
  const auto last = std::find_if(state.log_history.rbegin(), state.log_history.rend(),
                                 [](const Json& row) { return row.contains("eval_loss"); });
  const auto trained = std::find_if(state.log_history.rbegin(), state.log_history.rend(),
                                    [](const Json& row) { return row.contains("train_loss"); });
  if (!config::is_seq2seq(config) || last == state.log_history.rend() ||
      trained == state.log_history.rend()) {
    return {};
  }
  const double train_loss = trained->at("train_loss").get<double>();
  const double eval_loss = last->at("eval_loss").get<double>();
  std::vector<std::string> lines{
      fmt::format("epoch={}: train_ppl={} train_epoch_loss={} eval_ppl={} eval_epoch_loss={}",
                  trainer.plan().num_epochs - 1, python_float_repr(std::exp(train_loss)),
                  python_float_repr(train_loss), python_float_repr(std::exp(eval_loss)),
                  python_float_repr(eval_loss))};
  if (last->contains("eval_accuracy")) {
    lines.push_back("accuracy=" + python_float_repr(100 * last->at("eval_accuracy").get<double>()));
  }
  return lines;
}

// What rank 0 has sent, by group: what stays inside a machine and what does not.
std::string traffic_line(const comm::Mesh& mesh) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, const std::unique_ptr<comm::Group>& group) {
    if (!group || group->size() == 1) return;
    parts.push_back(fmt::format("{} {:.3f} MB ({})", name,
                                static_cast<double>(group->traffic().sent_bytes) / 1e6,
                                group->transport()));
  };
  add("all ranks", mesh.world);
  add("shard group", mesh.shard);
  add("copies", mesh.replicate);
  add("parts", mesh.part);
  return parts.empty() ? "" : fmt::format("sent by rank 0: {}", fmt::join(parts, ", "));
}

// How far the downloads and the tokenizing are, on the terminal of rank 0.
class PreparationLine {
 public:
  PreparationLine(const Output& output, bool is_main)
      : is_main_(is_main),
        write_(output.write),
        line_(output.write, output.columns, is_main && output.is_terminal) {}

  void show_rows(const std::string& subject, int64_t rows, double part) {
    line_.show(report::preparation_text(subject, rows, part));
  }
  void show_download(const std::string& name, int64_t done, int64_t all) {
    if (!is_main_) return;
    const std::string text = report::download_text(name, done, all);
    line_.show(text);
    if (done != all) return;
    line_.clear();
    write_(text + "\n");
  }

 private:
  const bool is_main_;
  std::function<void(std::string_view)> write_;
  report::LiveLine line_;
};

// What a run is told, once its ranks have met.
struct RunOrder {
  const config::RunConfig& config;
  const std::string& settings_text;
  const Output& output;
  bool writes_results;
  at::Device device;
};

// What libtorch says was asked for: the sentence with the size.
std::string wanted_memory(const std::string& message) {
  const size_t found = message.find("Tried to allocate");
  const std::string sentence = message.substr(found == std::string::npos ? 0 : found);
  return sentence.substr(0, sentence.find(". "));
}

// Memory of a GPU that does not suffice becomes an error with the plan beside what was in use.
template <typename Work>
RunResult explaining_memory(const std::optional<MemoryWatch>& watch, at::Device device,
                            const Work& work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& error) {
    if (!device.is_cuda()) throw;
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
                comm::Group& saving, std::optional<MemoryWatch>& watch, Status& status) {
  const config::RunConfig& config = order.config;
  status.set_phase("loading the model");
  const std::unique_ptr<Trainee> trainee = assemble(config, mesh, target_of(order.device));
  Trainer trainer(config, order.settings_text, *trainee, datasets,
                  {.group = saving, .writes_result = order.writes_results}, order.output);
  introduce(config, *trainee, datasets, trainer);
  if (watch) {
    trainer.say(watch->planned_line());
    watch->start(*trainee, trainer);
  }
  if (wants_rehearsal(config, *trainee, datasets, trainer.plan(), trainer.global_step())) {
    for (const std::string& line : rehearse(config, *trainee, datasets, trainer)) trainer.say(line);
  }

  RunResult result;
  result.train_loss = trainer.run();
  result.global_step = trainer.global_step();
  result.output_dir = config.train.output_dir;
  for (const std::string& line : seq2seq_lines(config, trainer)) trainer.say(line);
  trainer.say(traffic_line(trainee->store->mesh()));
  result.is_stopped = trainer.is_stopped();
  if (result.is_stopped || !order.writes_results) return result;
  status.set_phase(kResultPhase);
  write_results(config, *trainee, datasets, trainer);
  if (watch) {
    trainer.say(watch->measured_line());
    if (const std::string line = watch->steady_line(); !line.empty()) trainer.say(line);
  }
  return result;
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
  const comm::RendezvousOptions meeting = rendezvous_options(config, environment, status);
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
  const std::unique_ptr<comm::Group> saving =
      rendezvous.make_group("saving", {}, /*is_watched=*/false);
  Datasets datasets;
  comm::all_or_nothing(*mesh.world, "preparing the data", [&] {
    PreparationLine line(output, environment.rank == 0);
    const auto show_download = [&](const std::string& name, int64_t done, int64_t all) {
      line.show_download(name, done, all);
    };
    fetch_model(config.model, show_download);
    require_recipe_of(load_model_config(config.model), config);
    datasets = load_datasets(config, vocab_size_of(config.model),
                             {.progress = [&](const std::string& subject, int64_t rows,
                                              double part) { line.show_rows(subject, rows, part); },
                              .download_progress = show_download,
                              .world_size = environment.world_size});
  });
  datasets.notes.insert(datasets.notes.begin(), folder.notes.begin(), folder.notes.end());
  // Only rank 0 tells; the others hold as much.
  std::optional<MemoryWatch> watch;
  if (environment.rank == 0) {
    watch.emplace(config, mesh, environment.local_world_size, datasets, meeting.device);
  }
  return explaining_memory(watch, meeting.device, [&] {
    return train({config, settings.json, output, writes_results, meeting.device}, mesh, datasets,
                 *saving, watch, status);
  });
}

}  // namespace

RunResult run_sft(const config::RunConfig& config, const launch::RankEnvironment& environment,
                  const SettingsText& settings, const Output& output) {
  return run(config, environment, settings, output, /*writes_results=*/true);
}

RunResult run_steps(const config::RunConfig& config, const launch::RankEnvironment& environment,
                    const SettingsText& settings, const Output& output) {
  return run(config, environment, settings, output, /*writes_results=*/false);
}

}  // namespace strata::train
