#include "strata/train/rehearsal.h"

#include <chrono>
#include <new>

#include <ATen/ops/ones.h>

#include "strata/base/error.h"
#include "strata/base/resident_memory.h"
#include "strata/data/collate.h"
#include "strata/memory/device_probe.h"
#include "strata/ops/matmul.h"
#include "strata/optim/adamw.h"
#include "strata/train/batch_tensors.h"
#include "strata/train/embedding_noise.h"

namespace strata::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongWork = 3600;           // seconds
constexpr int64_t kMostScanned = 1'000'000;  // micro-batches that are looked at for the longest

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t tokens_of(const data::TokenStore& dataset, const std::vector<int64_t>& rows) {
  int64_t tokens = 0;
  for (int64_t row : rows) {
    tokens += static_cast<int64_t>(dataset[static_cast<size_t>(row)].ids.size());
  }
  return tokens;
}

LongestBatch longest_evaluation_batch(const data::TokenStore& dataset,
                                      const config::TrainConfig& settings,
                                      const comm::Group& world) {
  const data::EvalSampler sampler(static_cast<int64_t>(dataset.size()),
                                  settings.per_device_eval_batch_size, world.size(),
                                  settings.dataloader_drop_last);
  LongestBatch longest;
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    std::vector<int64_t> rows = sampler.batch(world.rank(), i).rows;
    const int64_t tokens = tokens_of(dataset, rows);
    if (tokens > longest.num_tokens) longest = {std::move(rows), tokens};
  }
  return longest;
}

data::MicroBatch micro_batch(const Trainee& trainee, const data::TokenStore& dataset,
                             const std::vector<int64_t>& rows) {
  std::vector<data::ExampleView> examples;
  for (int64_t row : rows) examples.push_back(dataset[static_cast<size_t>(row)]);
  return data::collate(examples, rows, trainee.model->decoder_start_id());
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
  const bool recomputes =
      config.shard.gradient_checkpointing && config.shard.checkpointing_mode != "selective";
  const auto num_layers = static_cast<double>(std::ranges::count_if(
      model.blocks(), [](auto* block) { return block->kind() == models::BlockKind::kLayer; }));
  const auto given = static_cast<double>(config.shard.checkpointing_layers);
  const double part = given > 0 && given < num_layers ? given / num_layers : 1;
  return 2 * ((recomputes ? 2 + part : 2) * all + trained);
}

// Runs `work`; memory of the host that does not suffice becomes an error that says for what. A
// GPU's is explained by who knows the plan (run.cpp).
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

// The batch's pairs, where the recipe learns pairs; what they weigh does not matter here.
std::optional<nn::Preference> pairs_of_batch(const data::MicroBatch& rows,
                                             const Preferences* preferences, bool training,
                                             nn::ForwardContext& context) {
  if (preferences == nullptr) return {};
  context.disable_dropout = preferences->disable_dropout;
  return pairs_of(rows, preferences->options, training ? preferences->train : preferences->eval);
}

void run_training_batch(const config::RunConfig& config, Trainee& trainee,
                        const data::TokenStore& dataset, const Preferences* preferences,
                        const LongestBatch& longest) {
  const data::MicroBatch rows = micro_batch(trainee, dataset, longest.rows);
  nn::LossSums sums;
  nn::ForwardContext context;
  context.training = true;
  context.loss_scale = 1.0f / static_cast<float>(std::max<int64_t>(rows.num_targets, 1));
  context.draw.seed = config.train.seed;
  context.label_smoothing = static_cast<float>(config.train.label_smoothing_factor);
  context.embedding_noise = embedding_noise(config, rows.row_tokens);
  context.sums = &sums;
  auto pairs = pairs_of_batch(rows, preferences, /*training=*/true, context);
  if (pairs) context.preference = &*pairs;
  const nn::Batch batch = to_tensors(rows, trainee.store->options().device);
  // The second micro-batch of a step has the gradients of the first beside its activations. They
  // stay in their homes until the first micro-batch of a step overwrites them (I2).
  const bool accumulates = config.train.gradient_accumulation_steps > 1;
  trainee.executor->train(batch, context, /*first_micro_step=*/true,
                          /*last_micro_step=*/!accumulates);
  if (accumulates) {
    trainee.executor->train(batch, context, /*first_micro_step=*/false, /*last_micro_step=*/true);
  }
  optim::global_gradient_norm(*trainee.store);
  trainee.optimizer->rehearse();
}

void run_evaluation_batch(Trainee& trainee, const data::TokenStore& dataset,
                          const Preferences* preferences, const LongestBatch& longest) {
  const data::MicroBatch rows = micro_batch(trainee, dataset, longest.rows);
  nn::LossSums sums;
  nn::ForwardContext context;
  context.sums = &sums;
  auto pairs = pairs_of_batch(rows, preferences, /*training=*/false, context);
  if (pairs) context.preference = &*pairs;
  trainee.executor->evaluate(to_tensors(rows, trainee.store->options().device), context);
}

// Of the host, and of a device that computes what its allocator held.
std::string peak_text(int64_t host_bytes, at::Device device) {
  const auto mb = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = fmt::format("{:.0f} MB", mb(host_bytes));
  if (device.is_cpu()) return text;
  return fmt::format("{:.0f} MB of {} and {} of the host",
                     mb(memory::device_memory(device).reserved_peak), device.str(), text);
}

bool saves(const config::TrainConfig& config, const StepPlan& plan, int64_t first_step) {
  if (config.save_strategy == "no") return false;
  if (config.save_strategy == "best") return first_step < plan.max_steps;
  for (int64_t step = first_step + 1; step <= plan.max_steps; ++step) {
    if (should_save(plan, config, step)) return true;
  }
  return false;
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
  const double flops = flops_per_token(config, *trainee.model) * rows_per_rank * tokens_per_row;
  // No machine is so slow that this takes an hour: nothing need be measured.
  constexpr double kSlowest = 1e9;
  return flops < kSlowest * kLongWork ? flops / kSlowest : flops / measured_flops(trainee);
}

bool wants_rehearsal(const config::RunConfig& config, const Trainee& trainee,
                     const Datasets& datasets, const StepPlan& plan, int64_t first_step) {
  if (config.train.rehearse != "auto") return config.train.rehearse == "true";
  comm::Group& world = *trainee.store->mesh().world;
  at::Tensor answer = at::zeros({1}, at::kInt);
  if (world.rank() == 0) {
    answer.fill_(planned_seconds(config, trainee, datasets.train, plan, first_step) > kLongWork);
  }
  world.broadcast(answer, /*root=*/0)->wait();
  return answer.item<int>() != 0;
}

std::vector<std::string> rehearse(const config::RunConfig& config, Trainee& trainee,
                                  const Datasets& datasets, const Preferences* preferences,
                                  Trainer& trainer) {
  comm::Group& world = *trainee.store->mesh().world;
  const int64_t first_step = trainer.global_step();
  PeakWatch watch;
  std::vector<std::string> parts;
  if (first_step < trainer.plan().max_steps) {
    const LongestBatch longest = longest_training_batch(datasets.train, trainer.sampler(),
                                                        trainer.plan(), world.rank(), first_step);
    const Clock::time_point start = Clock::now();
    with_memory_for(
        fmt::format("the longest batch ({} tokens in {} rows)", longest.num_tokens,
                    longest.rows.size()),
        "lower per_device_train_batch_size or max_length, turn on gradient_checkpointing, or use "
        "more ranks",
        [&] { run_training_batch(config, trainee, datasets.train, preferences, longest); });
    parts.push_back(fmt::format("longest batch of {} tokens {:.1f} s", longest.num_tokens,
                                seconds_since(start)));
  }
  if (datasets.eval) {
    const LongestBatch longest = longest_evaluation_batch(*datasets.eval, config.train, world);
    const Clock::time_point start = Clock::now();
    with_memory_for(fmt::format("the longest evaluation batch ({} tokens in {} rows)",
                                longest.num_tokens, longest.rows.size()),
                    "lower per_device_eval_batch_size",
                    [&] { run_evaluation_batch(trainee, *datasets.eval, preferences, longest); });
    parts.push_back(fmt::format("evaluation batch of {} tokens {:.1f} s", longest.num_tokens,
                                seconds_since(start)));
  }
  if (saves(config.train, trainer.plan(), first_step)) {
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
