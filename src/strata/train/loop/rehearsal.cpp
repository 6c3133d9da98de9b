#include "strata/train/loop/rehearsal.h"

#include <chrono>
#include <new>

#include <ATen/ops/ones.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/resident_memory.h"
#include "strata/base/seconds_since.h"
#include "strata/data/collate.h"
#include "strata/memory/device_probe.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/optim/adamw.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/answers.h"
#include "strata/train/loop/batch_tensors.h"
#include "strata/train/loop/decode_answers.h"
#include "strata/train/loop/micro_pass.h"

namespace strata::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongWork = 3600;           // seconds
constexpr int64_t kMostScanned = 1'000'000;  // micro-batches that are looked at for the longest

int64_t tokens_of(const data::TokenStore& dataset, const std::vector<int64_t>& rows) {
  int64_t tokens = 0;
  for (int64_t row : rows) {
    tokens += dataset.num_own_tokens(static_cast<size_t>(row));
  }
  return tokens;
}

LongestBatch longest_evaluation_batch(const data::TokenStore& dataset,
                                      const config::RunConfig& settings, const comm::Mesh& mesh) {
  const data::EvalSampler sampler =
      evaluation_sampler(settings, dataset, mesh.data_parallel_size());
  LongestBatch longest;
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    std::vector<int64_t> rows = sampler.batch(mesh.data_parallel_rank(), i).rows;
    const int64_t tokens = tokens_of(dataset, rows);
    if (tokens > longest.num_tokens) longest = {std::move(rows), tokens};
  }
  return longest;
}

// Multiplications and additions a second of this rank, as its matrix products reach them where it
// computes.
double measured_flops(const Trainee& trainee) {
  const at::Device device = trainee.store->options().device;
  // A GPU has done the smaller one sooner than it is told to.
  const int64_t size = device.is_cpu() ? 1024 : 4096;
  const at::Tensor a =
      at::ones({size, size}, at::TensorOptions(device).dtype(trainee.compute_type));
  // Reading a number waits for a device. The first time threads start and pages come in.
  const auto multiply = [&a] { ops::matmul(a, a)[0][0].item<float>(); };
  multiply();
  const Clock::time_point start = Clock::now();
  multiply();
  const auto edge = static_cast<double>(size);
  return 2 * edge * edge * edge / std::max(seconds_since(start), 1e-9);
}

double flops_per_token(const config::RunConfig& config, models::Model& model) {
  double all = 0, trained = 0;
  for (const nn::Parameter* parameter : model.parameters()) {
    all += static_cast<double>(parameter->numel());
    if (parameter->requires_grad()) trained += static_cast<double>(parameter->numel());
  }
  // Forward, gradients of inputs, recomputation; gradients of weights for what trains.
  const bool recomputes = config.shard.gradient_checkpointing &&
                          config.shard.checkpointing_mode != config::Checkpointing::kSelective;
  const auto num_layers = static_cast<double>(std::ranges::count_if(
      model.blocks(), [](auto* block) { return block->kind() == models::BlockKind::kLayer; }));
  const auto given = static_cast<double>(config.shard.checkpointing_layers);
  const double part = given > 0 && given < num_layers ? given / num_layers : 1;
  return 2 * ((recomputes ? 2 + part : 2) * all + trained);
}

// Runs `work`; memory of the host that does not suffice becomes an error that says for what. A
// GPU's is explained by who knows the plan (memory_error.h).
void with_memory_for(const std::string& what, const std::string& advice,
                     const std::function<void()>& work) {
  const auto fail = [&] {
    throw OutOfMemoryError("rehearsal: found too little memory for {}, expected enough; {}", what,
                           advice);
  };
  try {
    work();
  } catch (const std::bad_alloc&) {
    fail();
  } catch (const c10::Error& error) {
    if (std::string_view(error.what()).find("can't allocate memory") == std::string_view::npos) {
      throw;
    }
    fail();
  }
}

void run_training_batch(const config::RunConfig& config, Trainee& trainee, const Recipe& recipe,
                        const data::TokenStore& dataset, const LongestBatch& longest) {
  const data::MicroBatch rows =
      data::collate_rows(dataset, longest.rows, trainee.model->decoder_start_id());
  // The second micro-batch of a step has the gradients of the first beside its activations. They
  // stay in their homes until the first micro-batch of a step overwrites them (I2).
  const size_t micro_steps = config.train.gradient_accumulation_steps > 1 ? 2 : 1;
  for (size_t i = 0; i < micro_steps; ++i) {
    train_batch(config, trainee, recipe, rows,
                {.micro_step = i, .micro_steps = micro_steps, .counts = recipe.count(rows)});
  }
  optim::global_gradient_norm(*trainee.store);
  trainee.optimizer->rehearse();
}

// With the longest answers that its sources can get, where it gets any. Returns what it was.
std::string run_evaluation_batch(const config::RunConfig& config, Trainee& trainee,
                                 const Recipe& recipe, const data::TokenStore& dataset,
                                 const LongestBatch& longest, Split split) {
  const data::MicroBatch rows =
      data::collate_rows(dataset, longest.rows, trainee.model->decoder_start_id());
  evaluate_batch(config, trainee, recipe, rows, split);
  const int64_t answer_tokens =
      split == Split::kEval ? max_answer_tokens(config, trainee.generation) : 0;
  const std::string text = fmt::format("evaluation batch of {} tokens", longest.num_tokens);
  if (answer_tokens == 0) return text;
  const generate::BeamSettings beams = answer_beams(config, trainee.generation);
  decode_answers(to_tensors(rows, trainee.store->options().device),
                 {.max_new_tokens = answer_tokens, .start = 0, .beams = beams}, trainee);
  return fmt::format("{} with answers of {}{}", text, answer_tokens,
                     beams.count > 1 ? fmt::format(" by {} beams", beams.count) : "");
}

// Of the host, and of a device that computes what its allocator held.
std::string peak_text(int64_t host_bytes, at::Device device) {
  const auto mb = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = fmt::format("{:.0f} MB", mb(host_bytes));
  if (device.is_cpu()) return text;
  return fmt::format("{:.0f} MB of {} and {} of the host",
                     mb(memory::device_memory(device).reserved_peak), device.str(), text);
}

}  // namespace

LongestBatch longest_training_batch(const data::TokenStore& dataset,
                                    const data::BatchSampler& sampler, const StepPlan& plan,
                                    int rank, int64_t first_step) {
  LongestBatch longest;
  int64_t scanned = 0;
  for (int64_t step = first_step; step < plan.max_steps && scanned < kMostScanned; ++step) {
    const StepPlan::Window window = plan.window(step);
    for (int64_t i = 0; i < window.count; ++i, ++scanned) {
      std::vector<int64_t> rows = sampler.batch(window.epoch, rank, window.first + i);
      const int64_t tokens = tokens_of(dataset, rows);
      if (tokens > longest.num_tokens) longest = {std::move(rows), tokens};
    }
  }
  return longest;
}

double planned_seconds(const config::RunConfig& config, const Trainee& trainee,
                       const data::TokenStore& dataset, const StepPlan& plan, int64_t first_step) {
  const double rows_per_rank = static_cast<double>(
      (plan.max_steps - first_step) * plan.accumulation * config.train.per_device_train_batch_size);
  const double tokens_per_row =
      static_cast<double>(dataset.stats().num_tokens) / static_cast<double>(dataset.size());
  const double flops = flops_per_token(config, *trainee.model) * rows_per_rank * tokens_per_row /
                       static_cast<double>(config.shard.sequence_parallel_size);
  // No machine is so slow that this takes an hour: nothing need be measured.
  constexpr double kSlowest = 1e9;
  return flops < kSlowest * kLongWork ? flops / kSlowest : flops / measured_flops(trainee);
}

bool wants_rehearsal(const config::RunConfig& config, const Trainee& trainee,
                     const Datasets& datasets, const StepPlan& plan, int64_t first_step) {
  using config::AutoSwitch;
  if (config.train.rehearse != AutoSwitch::kAuto) return config.train.rehearse == AutoSwitch::kTrue;
  comm::Group& world = *trainee.store->mesh().world;
  at::Tensor answer = at::zeros({1}, at::kInt);
  if (world.rank() == 0) {
    answer.fill_(planned_seconds(config, trainee, datasets.train, plan, first_step) > kLongWork);
  }
  world.broadcast(answer, /*root=*/0)->wait();
  return answer.item<int>() != 0;
}

std::vector<std::string> rehearse(const config::RunConfig& config, Trainee& trainee,
                                  const Datasets& datasets, const Recipe& recipe,
                                  Trainer& trainer) {
  const comm::Mesh& mesh = trainee.store->mesh();
  const int64_t first_step = trainer.global_step();
  PeakWatch watch;
  std::vector<std::string> parts;
  if (first_step < trainer.plan().max_steps) {
    const LongestBatch longest = longest_training_batch(
        datasets.train, trainer.sampler(), trainer.plan(), mesh.data_parallel_rank(), first_step);
    const Clock::time_point start = Clock::now();
    with_memory_for(
        fmt::format("the longest batch ({} in {})", counted(longest.num_tokens, "token"),
                    counted(longest.rows.size(), "row")),
        "lower per_device_train_batch_size or max_length, turn on gradient_checkpointing, or use "
        "more ranks",
        [&] { run_training_batch(config, trainee, recipe, datasets.train, longest); });
    parts.push_back(fmt::format("longest batch of {} tokens {:.1f} s", longest.num_tokens,
                                seconds_since(start)));
  }
  for (const data::TokenStore* set : datasets.evaluations()) {
    const LongestBatch longest = longest_evaluation_batch(*set, config, mesh);
    const Clock::time_point start = Clock::now();
    std::string what;
    with_memory_for(
        fmt::format("the longest evaluation batch ({} in {})", counted(longest.num_tokens, "token"),
                    counted(longest.rows.size(), "row")),
        "lower per_device_eval_batch_size", [&] {
          what = run_evaluation_batch(config, trainee, recipe, *set, longest,
                                      set == &*datasets.eval ? Split::kEval : Split::kSecondEval);
        });
    parts.push_back(fmt::format("{} {:.1f} s", what, seconds_since(start)));
  }
  if (count_saves(trainer.plan(), config.train, first_step) > 0) {
    const Clock::time_point start = Clock::now();
    uint64_t bytes = 0;
    with_memory_for("one checkpoint", "turn off async_save or use more ranks",
                    [&] { bytes = trainer.rehearse_save(); });
    parts.push_back(fmt::format("checkpoint of {:.1f} MB {:.1f} s",
                                static_cast<double>(bytes) / 1e6, seconds_since(start)));
  }
  return {fmt::format("rehearsal: {}; peak memory {}; undone", fmt::join(parts, ", "),
                      peak_text(watch.stop(), trainee.store->options().device))};
}

}  // namespace strata::train
