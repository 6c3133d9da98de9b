#include "strata/train/self_test.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "strata/base/error.h"
#include "strata/config/checks/rated_checks.h"
#include "strata/optim/metric_schedule.h"

namespace strata::train {
namespace {

constexpr int64_t kSteps = 3;  // the second and third show what the first one's update did

std::vector<Json> steps_before_epoch_end(const std::vector<Json>& rows) {
  std::vector<Json> steps;
  for (const Json& row : rows) {
    if (row.contains("loss") && row.at("epoch").get<double>() < 1) steps.push_back(row);
  }
  return steps;
}

// |a - b|; where both overflowed alike 0, where one did infinity.
double difference(const Json& a, const Json& b) {
  const auto number = [](const Json& value) {
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
  };
  const double x = number(a), y = number(b);
  if (!std::isfinite(x) || !std::isfinite(y)) {
    return std::isfinite(x) == std::isfinite(y) ? 0 : std::numeric_limits<double>::infinity();
  }
  return std::abs(x - y);
}

double size_of(const Json& value) { return value.is_number() ? std::abs(value.get<double>()) : 1; }

}  // namespace

std::vector<Layout> self_test_layouts(const config::RunConfig& config, int world_size) {
  Layout own{"as set",
             world_size,
             config.train.per_device_train_batch_size,
             config.train.gradient_accumulation_steps,
             config.shard.gradient_checkpointing,
             static_cast<int>(config.shard.sequence_parallel_size)};
  const bool is_cut = own.world_size == 1 || own.accumulation == 1;
  if (is_cut && own.batch_size % 2 == 1) own.batch_size *= 2;
  Layout ranks = own, accumulation = own, checkpointing = own;
  if (own.world_size > 1) {
    ranks.name = "one rank";
    ranks.world_size = 1;
    ranks.sharers = 1;
    ranks.batch_size *= own.world_size / own.sharers;
  } else {
    ranks.name = "two ranks";
    ranks.world_size = 2;
    ranks.batch_size /= 2;
  }
  accumulation.name = "accumulation";
  if (own.accumulation > 1) {
    accumulation.batch_size *= own.accumulation;
    accumulation.accumulation = 1;
  } else {
    accumulation.batch_size /= 2;
    accumulation.accumulation = 2;
  }
  checkpointing.name = "checkpointing";
  checkpointing.checkpointing = !own.checkpointing;
  return {own, ranks, accumulation, checkpointing};
}

std::vector<std::string> self_test_losses(const config::RunConfig& config) {
  // What stands for the divergence is taken of the answers that share a batch.
  if (config::estimates_divergence(config)) return {"apo_zero_unpaired"};
  // These sort the pairs that share one.
  std::vector<std::string> losses = config.preference.loss_type;
  std::ranges::replace(losses, "aot", "sigmoid");
  std::ranges::replace(losses, "aot_unpaired", "sigmoid");
  return losses;
}

config::RunConfig self_test_settings(config::RunConfig config, const Layout& layout, int world_size,
                                     const std::filesystem::path& output_dir) {
  config::TrainConfig& train = config.train;
  train.output_dir = output_dir.string();
  train.per_device_train_batch_size = layout.batch_size;
  train.gradient_accumulation_steps = layout.accumulation;
  // The layouts have rows of their own, and must have them in one order.
  train.auto_find_batch_size = false;
  if (train.train_sampling_strategy == config::Sampling::kGroupByLength) {
    train.train_sampling_strategy = config::Sampling::kRandom;
  }
  train.max_steps = kSteps;
  train.logging_strategy = config::Interval::kSteps;
  train.logging_steps = 1;
  train.eval_strategy = config::Interval::kNo;
  train.eval_on_start = false;
  train.save_strategy = config::Interval::kNo;
  train.resume_from_checkpoint.clear();
  train.rehearse = config::AutoSwitch::kFalse;
  train.disable_tqdm = true;
  config.preference.loss_type = self_test_losses(config);
  config.lora.dropout = 0;
  config.shard.gradient_checkpointing = layout.checkpointing;
  // A schedule that answers to evaluations has none here.
  if (optim::is_metric_schedule(config.optim.lr_scheduler_type)) {
    config.optim.lr_scheduler_type = "constant";
    config.optim.lr_scheduler_kwargs.clear();
  }
  if (layout.world_size != world_size) {
    config.shard.dp_shard_size = 0;
    config.shard.dp_replicate_size = 0;
    config.shard.reshard_group_size = 0;
    config.shard.sequence_parallel_size = 1;
  }
  return config;
}

Tolerance self_test_tolerance(const config::ShardConfig& config) {
  const auto is_narrow = [](const std::string& type) {
    return type == "bfloat16" || type == "float16";
  };
  constexpr double kBf16 = 1.0 / 256;
  const bool narrow =
      config.bf16 || config.fp16 || is_narrow(config.param_dtype) || is_narrow(config.reduce_dtype);
  return narrow ? Tolerance{kBf16, 16 * kBf16} : Tolerance{1e-5, 1e-3};
}

bool Comparison::is_same(const Tolerance& tolerance) const {
  return loss_difference <= tolerance.loss && norm_difference <= tolerance.gradient_norm;
}

Comparison compare_runs(const std::vector<Json>& expected, const std::vector<Json>& found) {
  const std::vector<Json> left = steps_before_epoch_end(expected);
  const std::vector<Json> right = steps_before_epoch_end(found);
  Comparison comparison;
  comparison.steps = static_cast<int64_t>(std::min(left.size(), right.size()));
  if (comparison.steps == 0) {
    throw FormatError(
        "data: found fewer rows than one step and one row more, expected more to compare; lower "
        "per_device_train_batch_size or gradient_accumulation_steps");
  }
  for (size_t i = 0; i < static_cast<size_t>(comparison.steps); ++i) {
    const Json &a = left[i], &b = right[i];
    if (a.at("step") != b.at("step") || a.at("num_tokens") != b.at("num_tokens")) {
      throw FormatError("step {}: found {} tokens so far, expected {}: the rows are not the same",
                        b.at("step").dump(), b.at("num_tokens").dump(), a.at("num_tokens").dump());
    }
    comparison.loss = b.at("loss").is_number() ? b.at("loss").get<double>()
                                               : std::numeric_limits<double>::quiet_NaN();
    comparison.loss_difference =
        std::max(comparison.loss_difference,
                 difference(a.at("loss"), b.at("loss")) / std::max(size_of(a.at("loss")), 1.0));
    comparison.norm_difference =
        std::max(comparison.norm_difference, difference(a.at("grad_norm"), b.at("grad_norm")) /
                                                 std::max(size_of(a.at("grad_norm")), 1e-12));
  }
  return comparison;
}

}  // namespace strata::train
