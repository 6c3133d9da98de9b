#include "strata/train/run.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/folder_lock.h"
#include "strata/comm/agreement.h"
#include "strata/comm/mesh.h"
#include "strata/comm/rendezvous.h"
#include "strata/models/footprint.h"
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
  return options;
}

void check_output_folder(const config::RunConfig& config) {
  // What an interrupted save of an earlier run left is not a checkpoint and never will be.
  constexpr std::string_view kWritten[] = {"checkpoint-", "model",         "adapter",
                                           "latest",      "metrics.jsonl", "trainer_state.json",
                                           "report.html", "config.json",   "tokenizer"};
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(config.train.output_dir)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tmp") == std::string::npos) continue;
    const bool is_own = std::ranges::any_of(
        kWritten, [&](std::string_view written) { return name.starts_with(written); });
    if (is_own && (entry.is_regular_file() || name.starts_with("checkpoint-"))) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& path : left) fs::remove_all(path);
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
      trainee.compute_type == at::kFloat ? "fp32" : "bf16",
      config.shard.gradient_checkpointing ? "checkpointed" : "kept"));
}

void introduce(const config::RunConfig& config, Trainee& trainee, const Datasets& datasets,
               Trainer& trainer) {
  const comm::Mesh& mesh = trainee.store->mesh();
  trainer.say(adapters::trainable_parameters_line(*trainee.model));
  describe_weights(config, trainee, trainer);
  trainer.say(
      fmt::format("{} rank{} ({}), {}, {} rows of {} tokens, {} steps of {} rows, masters fp32, "
                  "computing in {}",
                  mesh.world->size(), mesh.world->size() == 1 ? "" : "s", mesh.world->transport(),
                  config.shard.sharding_strategy, datasets.train.size(),
                  datasets.train.stats().num_tokens, trainer.plan().max_steps,
                  config.train.per_device_train_batch_size * mesh.world->size() *
                      config.train.gradient_accumulation_steps,
                  trainee.compute_type == at::kFloat ? "fp32" : "bf16"));
  if (config.shard.bf16 && trainee.compute_type == at::kFloat) {
    trainer.say(
        "bf16: this CPU has no bf16 arithmetic, computing in fp32 instead (faster here, and "
        "more exact)");
  }
  if (config.shard.fp16) {
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
  for (const std::string& line : describe_load_memory(trainee.load_memory)) trainer.say(line);
  for (const std::string& line : describe_offload(config.shard, trainee.offload)) trainer.say(line);
  for (const std::string& note : datasets.notes) trainer.say(note);
  for (const std::string& line : describe_losses(datasets.train.stats(), config.data)) {
    trainer.say(line);
  }
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

// A line on the terminal that says how far the tokenizing is, gone when it ends.
class PreparationLine {
 public:
  PreparationLine(const Output& output, bool is_main)
      : output_(output), shows_(is_main && output.is_terminal) {}
  ~PreparationLine() {
    if (!shown_.empty()) output_.write("\r\x1b[K");
  }

  void show(const std::string& subject, int64_t done, int64_t all) {
    if (!shows_ || all < kWorthShowing) return;
    std::string line =
        fmt::format("preparing {}: {} of {} rows ({} %)", subject, done, all, 100 * done / all);
    line.resize(std::min<size_t>(line.size(), static_cast<size_t>(output_.columns()) - 1));
    if (line == shown_) return;
    const auto now = std::chrono::steady_clock::now();
    if (!shown_.empty() && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    shown_ = std::move(line);
    output_.write("\r" + shown_ + "\x1b[K");
  }

 private:
  static constexpr int64_t kWorthShowing = 1000;  // rows
  const Output& output_;
  const bool shows_;
  std::string shown_;
  std::chrono::steady_clock::time_point last_;
};

RunResult run(const config::RunConfig& config, const launch::RankEnvironment& environment,
              const std::string& settings_text, const std::string& settings_hash,
              const Output& output, bool writes_results) {
  // Checked before the ranks meet: each says what is wrong, none that another one is gone.
  const comm::MeshShape shape =
      mesh_shape(config.shard, environment.world_size, environment.local_world_size);
  comm::check_mesh_shape(environment.world_size, shape);
  Status unseen;
  Status& status = output.status != nullptr ? *output.status : unseen;
  status.set_phase("meeting the other ranks");
  comm::Rendezvous rendezvous(rendezvous_options(config, environment, status));
  rendezvous.require_same("settings", settings_hash);
  comm::Mesh mesh = comm::make_mesh(rendezvous, shape);

  status.set_phase("preparing the data");
  // On its own: rank 0's error must not wait until the others have read their data.
  std::optional<FolderLock> lock;
  comm::all_or_nothing(*mesh.world, "preparing the output folder", [&] {
    check_offload_folders(config.shard);
    if (environment.rank != 0) return;
    require_writable_folder(config.train.output_dir);
    lock.emplace(config.train.output_dir);
    check_output_folder(config);
    check_kind_of_result(config);
  });
  comm::all_or_nothing(*mesh.world, "looking at the output folder", [&] {
    if (environment.rank != 0) require_shared_folder(config.train.output_dir, environment.rank);
  });
  const std::unique_ptr<comm::Group> saving =
      rendezvous.make_group("saving", {}, /*is_watched=*/false);
  Datasets datasets;
  comm::all_or_nothing(*mesh.world, "preparing the data", [&] {
    PreparationLine line(output, environment.rank == 0);
    datasets = load_datasets(config, vocab_size_of(config.model),
                             {.progress = [&](const std::string& subject, int64_t done,
                                              int64_t all) { line.show(subject, done, all); }});
  });
  // Only rank 0 tells; the others hold as much.
  std::optional<MemoryWatch> watch;
  if (environment.rank == 0) {
    watch.emplace(config, mesh, environment.local_world_size, datasets);
  }
  status.set_phase("loading the model");
  const std::unique_ptr<Trainee> trainee = assemble(config, mesh);
  Trainer trainer(config, settings_text, *trainee, datasets, *saving, output);
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
  trainer.say(traffic_line(trainee->store->mesh()));
  result.is_stopped = trainer.is_stopped();
  if (result.is_stopped || !writes_results) return result;
  status.set_phase("writing the result");
  write_results(config, *trainee, datasets, trainer);
  if (watch) {
    trainer.say(watch->measured_line());
    if (const std::string line = watch->steady_line(); !line.empty()) trainer.say(line);
  }
  return result;
}

}  // namespace

RunResult run_sft(const config::RunConfig& config, const launch::RankEnvironment& environment,
                  const std::string& settings_text, const std::string& settings_hash,
                  const Output& output) {
  return run(config, environment, settings_text, settings_hash, output, /*writes_results=*/true);
}

RunResult run_steps(const config::RunConfig& config, const launch::RankEnvironment& environment,
                    const std::string& settings_text, const std::string& settings_hash,
                    const Output& output) {
  return run(config, environment, settings_text, settings_hash, output, /*writes_results=*/false);
}

}  // namespace strata::train
