#include "strata/train/setup/introduction.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "strata/adapters/counts.h"
#include "strata/base/counted.h"
#include "strata/comm/mesh.h"
#include "strata/comm/tcp.h"
#include "strata/config/derived.h"
#include "strata/config/recipes.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_form.h"
#include "strata/models/footprint.h"
#include "strata/train/data_warnings.h"
#include "strata/train/loop/schedules.h"
#include "strata/train/setup/base_quantization.h"
#include "strata/train/setup/load_memory.h"
#include "strata/train/setup/offload.h"

namespace strata::train {
namespace {

const char* name_of_compute(at::ScalarType type) {
  return type == at::kFloat ? "fp32" : type == at::kHalf ? "fp16" : "bf16";
}

std::string describe_ints(int64_t num_kept, int num_decoded) {
  if (num_kept == 0) {
    return "base in integers: decoded while it is read; weights are plain from then on";
  }
  return fmt::format(
      "base in integers: {} matrices stay as they are, frozen, each decoded for its product "
      "(int_dequantize decodes them while they are read){}",
      num_kept,
      num_decoded == 0
          ? ""
          : fmt::format("; {} others (of 2 bits, of the vocabulary, or that train) are decoded",
                        num_decoded));
}

// How many weights of a model are stored as codes, by the kind of codes.
struct WeightForms {
  int64_t num_quantized = 0, num_in_mxfp4 = 0, num_in_fp8 = 0, num_in_ints = 0;
  const nn::Parameter* quantized = nullptr;  // one of these; null: there are none
  std::set<at::ScalarType> plain;            // types of the others
};

WeightForms forms_of(models::Model& model) {
  WeightForms forms;
  for (const nn::Parameter* parameter : model.parameters()) {
    if (!parameter->quantization()) {
      forms.plain.insert(parameter->storage_type());
      continue;
    }
    const ops::quant::Format& format = parameter->quantization()->format;
    if (format.kind == ops::quant::Kind::kFp8) {
      ++forms.num_in_fp8;
    } else if (format.kind == ops::quant::Kind::kInts) {
      ++forms.num_in_ints;
    } else if (format == ops::quant::kMxfp4Format) {
      ++forms.num_in_mxfp4;
    } else {
      forms.quantized = parameter;
      ++forms.num_quantized;
    }
  }
  return forms;
}

std::string describe_quantized(const config::RunConfig& config, const Trainee& trainee,
                               const WeightForms& forms) {
  const bool has_16_bits = forms.plain.contains(at::kBFloat16) || forms.plain.contains(at::kHalf);
  return fmt::format(
      "quantised base: {} matrices as {}, frozen, their scales take {} bytes; norms, embeddings "
      "and output layer are stored in {} and computed in {}, the first layer's input requires a "
      "gradient, activations are {}",
      forms.num_quantized, ops::quant::describe(forms.quantized->quantization()->format),
      models::scale_bytes(*trainee.model), has_16_bits ? "the file's type" : "fp32",
      name_of_compute(trainee.compute_type),
      config.shard.gradient_checkpointing ? "checkpointed" : "kept");
}

void describe_weights(const config::RunConfig& config, const Trainee& trainee, Trainer& trainer) {
  const WeightForms forms = forms_of(*trainee.model);
  const int64_t bytes = models::memory_footprint_bytes(*trainee.model) +
                        (trainee.adapter ? adapters::buffer_bytes(*trainee.adapter) : 0);
  trainer.say(fmt::format("memory footprint: {} bytes ({:.2f} MB)", bytes,
                          static_cast<double>(bytes) / 1e6));
  if (forms.num_in_mxfp4 > 0) {
    trainer.say(fmt::format(
        "experts in MXFP4: {} weights, frozen, an expert's matrix decoded for each product "
        "(mxfp4_dequantize decodes them while they are read)",
        forms.num_in_mxfp4));
  }
  const bool has_files = !config.model.model_name_or_path.empty();
  if (has_files && hf::announces_fp8(trainee.model_config)) {
    trainer.say(forms.num_in_fp8 == 0
                    ? "base in fp8: decoded while it is read; weights are plain from then on"
                    : fmt::format("base in fp8: {} matrices stay as they are, frozen, each decoded "
                                  "for its product (fp8_dequantize decodes them while they are "
                                  "read)",
                                  forms.num_in_fp8));
  }
  if (has_files && hf::announces_ints(trainee.model_config)) {
    trainer.say(describe_ints(forms.num_in_ints, trainee.num_decoded_ints));
  }
  if (forms.quantized != nullptr) trainer.say(describe_quantized(config, trainee, forms));
}

// What the public script for such models prints after its last epoch.
std::vector<std::string> seq2seq_lines(const config::RunConfig& config, const Trainer& trainer) {
  const report::TrainerState state = trainer.state();
  const auto last = std::find_if(state.log_history.rbegin(), state.log_history.rend(),
                                 [](const Json& row) { return row.contains("eval_loss"); });
  const auto trained = std::find_if(state.log_history.rbegin(), state.log_history.rend(),
                                    [](const Json& row) { return row.contains("train_loss"); });
  if (!config::recipe_of(config).has_encoder || last == state.log_history.rend() ||
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

std::string sharing_text(const comm::Mesh& mesh) {
  if (!mesh.sequence) return "";
  return fmt::format("rows shared by {} ranks each, ", mesh.sequence->size());
}

// What rank 0 has sent, by group: what stays inside a machine and what does not.
std::string traffic_line(const comm::Mesh& mesh) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, const std::unique_ptr<comm::Group>& group) {
    if (!group || group->size() == 1) return;
    parts.push_back(fmt::format("{} {:.3f} MB ({})", name,
                                static_cast<double>(group->traffic().sent_bytes) / 1e6,
                                comm::name_of(group->transport())));
  };
  add("all ranks", mesh.world);
  add("shard group", mesh.shard);
  add("copies", mesh.replicate);
  add("parts", mesh.part);
  add("sequences", mesh.sequence);
  return parts.empty() ? "" : fmt::format("sent by rank 0: {}", fmt::join(parts, ", "));
}

// What really moved, beside the theory of traffic_line(): counted by those who move it.
std::string moved_line(const comm::Mesh& mesh) {
  int64_t copied = 0;
  for (const comm::Group* group : {mesh.world.get(), mesh.shard.get(), mesh.replicate.get(),
                                   mesh.part.get(), mesh.sequence.get()}) {
    if (group != nullptr) copied += group->received_bytes().value_or(0);
  }
  if (mesh.world->size() == 1) return "";
  return fmt::format("moved by rank 0: {:.3f} MB out of other ranks' memory, {:.3f} MB into TCP",
                     static_cast<double>(copied) / 1e6,
                     static_cast<double>(comm::tcp_sent_bytes()) / 1e6);
}

// Ranks, rows, steps and types in a line.
void describe_run(const config::RunConfig& config, const Trainee& trainee, const Datasets& datasets,
                  Trainer& trainer) {
  const comm::Mesh& mesh = trainee.store->mesh();
  trainer.say(fmt::format(
      "{} ({}), {}, {}{} of {}, {} of {}, masters fp32, "
      "computing in {} on {}",
      counted(mesh.world->size(), "rank"), comm::name_of(mesh.world->transport()),
      config.shard.sharding_strategy, sharing_text(mesh), counted(datasets.train.size(), "row"),
      counted(datasets.train.stats().num_tokens, "token"),
      counted(trainer.plan().max_steps, "step"),
      counted(config.train.per_device_train_batch_size * mesh.data_parallel_size() *
                  config.train.gradient_accumulation_steps,
              "row"),
      name_of_compute(trainee.compute_type),
      trainee.store->options().device.is_cuda() ? trainee.store->options().device.str()
                                                : "the CPU"));
}

// A warm-up that outlasts the run: of one step, the rate of which is 0, nothing is learnt.
void describe_warmup(const config::RunConfig& config, Trainer& trainer) {
  const int64_t steps = trainer.plan().max_steps;
  const int64_t warmup = config::num_warmup_steps(config.optim, steps);
  const auto factor = lr_schedule(config.optim, steps);
  if (warmup < steps || !factor) return;
  const double last = factor(steps - 1);
  if (last >= 1) return;  // a schedule without one
  trainer.say(fmt::format(
      "warning: warmup_steps: found {} for a run of {}, expected fewer: the learning rate reaches "
      "at most {:.3g} of {:.3g}{}; lower it",
      warmup, counted(steps, "step"), last * config.optim.learning_rate, config.optim.learning_rate,
      last > 0 ? "" : ", so that nothing is learnt"));
}

// Settings that mean another thing here than their names say, or nothing.
void describe_settings(const config::RunConfig& config, const Trainee& trainee, Trainer& trainer) {
  if (config.shard.bf16 && trainee.compute_type == at::kFloat) {
    trainer.say(
        "bf16: this CPU has no bf16 arithmetic, computing in fp32 instead (faster here, and "
        "more exact)");
  }
  if (config.shard.fp16 && trainee.compute_type == at::kFloat) {
    trainer.say(
        "fp16: weights are rounded to fp16 when they are gathered, products are computed in fp32");
  }
  if (config.optim.optim.starts_with("paged_")) {
    trainer.say(fmt::format(
        "{}: nothing is paged, the state is sharded and stays where {} (offload_optimizer_device "
        "and fsdp_offload_params move it)",
        config.optim.optim,
        trainee.store->options().device.is_cuda() ? "the GPU or its offload keeps it"
                                                  : "the host keeps its memory"));
  }
  describe_warmup(config, trainer);
  const int64_t profiled = config.train.profile_step;
  if (profiled > trainer.plan().max_steps) {
    trainer.say(fmt::format("warning: profile_step: has no effect; the run has {}, found step {}",
                            counted(trainer.plan().max_steps, "step"), profiled));
  }
  if (is_hybrid(config.shard.sharding_strategy) && trainee.store->mesh().replicate->size() == 1) {
    trainer.say(fmt::format("{}: all ranks are in one shard group, which is {} here",
                            config.shard.sharding_strategy,
                            config.shard.sharding_strategy == config::ShardingStrategy::kHybridShard
                                ? "FULL_SHARD"
                                : "SHARD_GRAD_OP"));
  }
}

// What the adapter's file and its settings have that a user may not expect.
void describe_adapter(const Trainee& trainee, Trainer& trainer) {
  if (trainee.continued_adapter) {
    for (const std::string& line : trainee.continued_adapter->warnings) {
      trainer.say("warning: " + line);
    }
  }
  if (trainee.adapter) {
    for (const std::string& note : trainee.adapter->notes()) trainer.say("note: " + note);
    if (!trainee.base_note.empty()) trainer.say("warning: " + trainee.base_note);
  }
}

}  // namespace

void introduce(const config::RunConfig& config, Trainee& trainee, const Datasets& datasets,
               const std::vector<std::string>& notes, Trainer& trainer) {
  trainer.say(adapters::trainable_parameters_line(*trainee.model));
  describe_weights(config, trainee, trainer);
  for (const std::string& line : quantization_warnings(config.quantization, trainee.model_config))
    trainer.say("warning: " + line);
  describe_run(config, trainee, datasets, trainer);
  describe_settings(config, trainee, trainer);
  describe_adapter(trainee, trainer);
  for (const std::string& line :
       describe_load_memory(trainee.load_memory, trainee.store->options().device))
    trainer.say(line);
  for (const std::string& line :
       describe_offload(config.shard, trainee.offload, trainee.store->options().device))
    trainer.say(line);
  for (const std::string& note : notes) trainer.say(note);
  for (const std::string& line : datasets.warnings) trainer.say("warning: " + line);
  for (const std::string& line :
       describe_losses(datasets.train.stats(), config, datasets.max_length)) {
    trainer.say(line);
  }
}

void conclude(const config::RunConfig& config, const comm::Mesh& mesh, Trainer& trainer) {
  for (const std::string& line : seq2seq_lines(config, trainer)) trainer.say(line);
  trainer.say(traffic_line(mesh));
  trainer.say(moved_line(mesh));
}

}  // namespace strata::train
