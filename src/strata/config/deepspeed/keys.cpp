// The table of ds_config keys, grouped by what becomes of them.
#include "strata/config/deepspeed/keys.h"

#include <string_view>
#include <utility>

namespace strata::config {
namespace {

using enum DsType;
using enum DsUse;
using Keys = std::vector<DsKey>;

void append(Keys& all, Keys part) {
  for (DsKey& key : part) all.push_back(std::move(key));
}

// Keys without effect for one reason.
void append_inert(Keys& all, std::string_view reason,
                  const std::vector<std::pair<std::string_view, DsType>>& keys) {
  for (const auto& [path, type] : keys) {
    all.push_back({.path = path, .type = type, .use = kNoEffect, .text = reason});
  }
}

Keys batch_and_precision() {
  return {
      {"train_batch_size", kInteger, kCode, {}, {}, {}, "per_device_train_batch_size", 1},
      {"train_micro_batch_size_per_gpu",
       kInteger,
       kCode,
       {},
       {},
       {},
       "per_device_train_batch_size",
       1},
      {"gradient_accumulation_steps",
       kInteger,
       kCode,
       {},
       {},
       {},
       "gradient_accumulation_steps",
       1},
      {"gradient_clipping", kNumber, kSetting, "max_grad_norm", {}, {}, "max_grad_norm", 0},
      {"dataloader_drop_last", kBoolean, kSetting, "dataloader_drop_last"},
      {"wall_clock_breakdown", kBoolean, kSetting, "wall_clock_breakdown"},
      {"activation_checkpointing.cpu_checkpointing", kBoolean, kSetting, "activation_offloading"},
      {"communication_data_type", kText, kSetting, "fsdp_reduce_dtype"},
      {"fp16.enabled", kBoolean, kSetting, "fp16", {}, {}, "fp16"},
      {"fp16.loss_scale", kNumber, kCode, {}, {}, {}, {}, 0},
      {"fp16.initial_scale_power", kInteger, kCode, {}, {}, {}, {}, 0},
      {"fp16.loss_scale_window", kInteger, kCode, {}, {}, {}, {}, 1},
      {"fp16.hysteresis", kInteger, kCode, {}, {}, {}, {}, 1},
      {"fp16.min_loss_scale", kNumber, kCode, {}, {}, {}, {}, 0},
      {"fp16.auto_cast", kBoolean, kOnly, "leave it at false", {"false"}},
      {"fp16.consecutive_hysteresis", kBoolean, kOnly, "leave it at false", {"false"}},
      {"fp16.fp16_master_weights_and_grads", kBoolean, kOnly, "masters are float32", {"false"}},
      {"bf16.enabled", kBoolean, kSetting, "bf16", {}, {}, "bf16"},
      {"bf16.bf16_master_weights_and_grads", kBoolean, kOnly, "masters are float32", {"false"}},
      {"bf16.bf16_optimizer_states", kBoolean, kOnly, "choose an 8-bit optim instead", {"false"}},
      {"torch_autocast.enabled", kBoolean, kOnly, "set bf16 or fp16", {"false"}},
      {"data_types.grad_accum_dtype",
       kText,
       kOnly,
       "gradients are summed in float32",
       {"null", "\"fp32\""}},
      {"data_types.param_dtype", kText, kOnly, "set bf16 or fp16", {"null"}},
  };
}

Keys zero_and_offload() {
  return {
      {"zero_optimization", kBoolean, kCode},  // its oldest form
      {"zero_optimization.stage", kInteger, kCode, {}, {}, {}, "fsdp_sharding_strategy", 0},
      {"zero_optimization.sub_group_size", kInteger, kCode, {}, {}, {}, {}, 0},
      {"zero_optimization.offload_param", kAny, kCode},
      {"zero_optimization.offload_param.device", kText, kCode, {}, {}, {}, "offload_param_device"},
      {"zero_optimization.offload_param.nvme_path",
       kText,
       kCode,
       {},
       {},
       {},
       "offload_param_nvme_path"},
      {"zero_optimization.offload_optimizer", kAny, kCode},
      {"zero_optimization.offload_optimizer.device",
       kText,
       kCode,
       {},
       {},
       {},
       "offload_optimizer_device"},
      {"zero_optimization.offload_optimizer.nvme_path",
       kText,
       kCode,
       {},
       {},
       {},
       "offload_optimizer_nvme_path"},
      {"zero_optimization.cpu_offload", kBoolean, kCode},
      {"zero_optimization.cpu_offload_param", kBoolean, kCode},
      {"zero_optimization.offload_optimizer.ratio",
       kNumber,
       kOnly,
       "the whole state is offloaded",
       {"1.0"}},
      {"zero_optimization.offload_optimizer.super_offload",
       kBoolean,
       kOnly,
       "leave it at false",
       {"false"}},
      {"aio.block_size", kInteger, kCode, {}, {}, {}, {}, 1},
      {"aio.queue_depth", kInteger, kCode, {}, {}, {}, {}, 1},
      {"zero_optimization.reduce_bucket_size", kInteger, kCode, {}, {}, {}, "(hidden_size^2)", 1},
      {"zero_optimization.allgather_bucket_size", kInteger, kCode, {}, {}, {}, {}, 0},
      {"zero_optimization.legacy_stage1", kBoolean, kOnly, "DeepSpeed refuses it, too", {"false"}},
      {"zero_optimization.zero_hpz_partition_size", kInteger, kCode, {}, {}, {}, {}, 0},
      {"zero_optimization.zero_quantized_weights", kBoolean, kOnly, "leave it at false", {"false"}},
      {"zero_optimization.zero_quantized_gradients",
       kBoolean,
       kOnly,
       "leave it at false",
       {"false"}},
      {"zero_optimization.zero_quantized_nontrainable_weights",
       kBoolean,
       kOnly,
       "quantise the base with load_in_4bit or load_in_8bit",
       {"false"}},
      {"zero_optimization.zenflow", kAny, kOnly, "leave it out", {"null"}},
      {"zero_optimization.compute_grad_norm",
       kBoolean,
       kOnly,
       "the norm is always computed",
       {"true"}},
      {"zero_optimization.mics_shard_size", kAny, kRemoved, "0.19.8; HYBRID_SHARD does the same"},
      {"zero_optimization.mics_hierarchical_params_gather", kAny, kRemoved, "0.19.8"},
      {"zero_optimization.zeropp_loco_param", kAny, kRemoved, "0.19.8"},
  };
}

Keys optimizer_and_scheduler() {
  return {
      {"optimizer.type", kText, kCode},
      {"optimizer.legacy_fusion", kBoolean, kNoEffect, "updates are always fused"},
      {"optimizer.params.lr", kNumber, kSetting, "learning_rate", {}, {}, "learning_rate", 0},
      {"optimizer.params.betas", kList, kCode, {}, {}, {}, "adam_beta1 and adam_beta2"},
      {"optimizer.params.eps", kNumber, kSetting, "adam_epsilon", {}, {}, "adam_epsilon", 0},
      {"optimizer.params.weight_decay",
       kNumber,
       kSetting,
       "weight_decay",
       {},
       {},
       "weight_decay",
       0},
      {"optimizer.params.adam_w_mode", kBoolean, kCode},
      {"optimizer.params.momentum", kNumber, kCode, {}, {}, {}, {}, 0},
      {"optimizer.params.dampening", kNumber, kCode, {}, {}, {}, {}, 0},
      {"optimizer.params.nesterov", kBoolean, kCode},
      {"optimizer.params.bias_correction",
       kBoolean,
       kOnly,
       "the bias is always corrected",
       {"true"}},
      {"optimizer.params.amsgrad", kBoolean, kOnly, "leave it at false", {"false"}},
      {"optimizer.params.torch_adam", kBoolean, kNoEffect, "one update rule serves all devices"},
      {"optimizer.params.fused", kBoolean, kNoEffect, "one update rule serves all devices"},
      {"optimizer.params.foreach", kBoolean, kNoEffect, "one update rule serves all devices"},
      {"optimizer.params.fp32_optimizer_states", kBoolean, kOnly, "states are float32", {"true"}},
      {"scheduler.type", kText, kCode},
      {"scheduler.params", kAny, kCode},
  };
}

Keys reporting_and_rest() {
  Keys all = {
      {"managed_gradient_accumulation", kBoolean, kOnly, "leave it at true", {"true"}},
      {"prescale_gradients", kBoolean, kOnly, "gradients are summed in float32", {"false"}},
      {"gradient_predivide_factor", kNumber, kOnly, "gradients are summed in float32", {"1.0"}},
      {"gradient_allreduce_op", kText, kOnly, "the loss is the mean over all tokens", {"\"mean\""}},
      {"disable_allgather", kBoolean, kOnly, "leave it at false", {"false"}},
      {"sequence_parallel_size", kInteger, kSetting, "parallelism_config_sp_size", {}, {}, {}, 1},
      {"data_parallel_size", kInteger, kCode, {}, {}, {}, {}, 1},
      {"checkpoint.load_universal",
       kBoolean,
       kOnly,
       "checkpoints can be read as they are at every world size",
       {"false"}},
  };
  // Whole features: the block may stand there switched off.
  for (const std::string_view block :
       {"compile", "tensor_parallel", "expert_parallel", "hybrid_engine", "pipeline", "autotuning",
        "data_efficiency", "weight_quantization", "datastates_ckpt"}) {
    all.push_back({block, kBlock, kOnly, "leave the block out"});
  }
  // Removed from DeepSpeed 0.19.8, which refuses their mere presence.
  for (const std::string_view block :
       {"nebula", "compression_training", "amp", "quantize_training", "sparse_gradients",
        "eigenvalue", "sparse_attention", "elasticity", "graph_harvesting", "curriculum_learning",
        "progressive_layer_drop"}) {
    all.push_back({block, kAny, kRemoved, "0.19.8"});
  }
  return all;
}

constexpr std::string_view kUnits =
    "a unit is gathered, used and reduced as a whole (see fsdp_limit_all_gathers)";

void append_inert_zero(Keys& all) {
  append_inert(all, "gradients are written into the buffer that is communicated",
               {{"zero_optimization.contiguous_gradients", kBoolean},
                {"zero_optimization.reduce_scatter", kBoolean},
                {"zero_optimization.use_multi_rank_bucket_allreduce", kBoolean},
                {"zero_optimization.allgather_partitions", kBoolean},
                {"zero_optimization.overlap_comm", kBoolean},
                {"zero_optimization.round_robin_gradients", kBoolean},
                {"zero_optimization.parameter_alignment", kBoolean},
                {"zero_optimization.ignore_unused_parameters", kBoolean}});
  append_inert(all, kUnits,
               {{"zero_optimization.stage3_model_persistence_threshold", kInteger},
                {"zero_optimization.stage3_max_live_parameters", kInteger},
                {"zero_optimization.stage3_max_reuse_distance", kInteger},
                {"zero_optimization.stage3_module_granularity_threshold", kInteger},
                {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kBoolean},
                {"zero_optimization.stage3_allgather_sequential", kBoolean},
                {"zero_optimization.memory_efficient_linear", kBoolean},
                {"zero_optimization.override_module_apply", kBoolean},
                {"zero_optimization.log_trace_cache_warnings", kBoolean},
                {"zero_optimization.enable_sanity_checks", kBoolean},
                {"zero_optimization.leaf_module", kAny}});
  all.push_back({"zero_optimization.stage3_prefetch_bucket_size",
                 kInteger,
                 kNoEffect,
                 kUnits,
                 {},
                 {"prefetch_bucket_size"},
                 "(0.9 hidden_size^2)",
                 0});
  all.push_back({"zero_optimization.stage3_param_persistence_threshold",
                 kInteger,
                 kNoEffect,
                 kUnits,
                 {},
                 {"param_persistence_threshold"},
                 "(10 hidden_size)",
                 0});
  constexpr std::string_view kFiles =
      "checkpoints are sharded, the result is a whole model or adapter";
  all.push_back({"zero_optimization.stage3_gather_16bit_weights_on_model_save",
                 kBoolean,
                 kCode,
                 {},
                 {},
                 {"stage3_gather_fp16_weights_on_model_save"},
                 "save_dtype"});
  append_inert(all, kFiles,
               {{"zero_optimization.load_from_fp32_weights", kBoolean},
                {"zero_optimization.elastic_checkpoint", kBoolean},
                {"zero_optimization.pipeline_loading_checkpoint", kBoolean},
                {"zero_optimization.save_muon_momentum_buffer_in_memory", kBoolean},
                {"checkpoint.tag_validation", kText},
                {"checkpoint.use_node_local_storage", kBoolean},
                {"checkpoint.parallel_write.pipeline_stage", kBoolean},
                {"checkpoint.checkpoint_serialization", kBoolean},
                {"checkpoint.writer.type", kText},
                {"checkpoint.writer.decoupled", kBoolean},
                {"checkpoint.writer.io_buffer_size", kInteger},
                {"checkpoint.writer.io_buffer_double", kBoolean},
                {"checkpoint.writer.show_statistics", kBoolean},
                {"checkpoint.writer.data_parallel", kText},
                {"checkpoint.writer.io_multiplier", kInteger}});
  append_inert(all, "host memory and buffers are laid out by the plan",
               {{"zero_optimization.offload_param.buffer_count", kInteger},
                {"zero_optimization.offload_param.buffer_size", kInteger},
                {"zero_optimization.offload_param.max_in_cpu", kInteger},
                {"zero_optimization.offload_param.pin_memory", kBoolean},
                {"zero_optimization.offload_optimizer.buffer_count", kInteger},
                {"zero_optimization.offload_optimizer.pin_memory", kBoolean},
                {"zero_optimization.offload_optimizer.pipeline_read", kBoolean},
                {"zero_optimization.offload_optimizer.pipeline_write", kBoolean},
                {"zero_optimization.offload_optimizer.fast_init", kBoolean},
                {"zero_optimization.offload_optimizer.cpuadam_cores_perc", kNumber},
                {"zero_optimization.cpu_offload_use_pin_memory", kBoolean},
                {"aio.intra_op_parallelism", kInteger},
                {"aio.single_submit", kBoolean},
                {"aio.overlap_events", kBoolean},
                {"aio.use_gds", kBoolean}});
}

void append_inert_rest(Keys& all) {
  append_inert(all, "it configures DeepSpeed's own function; set gradient_checkpointing",
               {{"activation_checkpointing.partition_activations", kBoolean},
                {"activation_checkpointing.contiguous_memory_optimization", kBoolean},
                {"activation_checkpointing.number_checkpoints", kInteger},
                {"activation_checkpointing.synchronize_checkpoint_boundary", kBoolean},
                {"activation_checkpointing.profile", kBoolean}});
  append_inert(all, "metrics go to metrics.jsonl in output_dir",
               {{"steps_per_print", kNumber},
                {"memory_breakdown", kBoolean},
                {"dump_state", kBoolean},
                {"log_level", kText},
                {"flops_profiler.enabled", kBoolean},
                {"flops_profiler.recompute_fwd_factor", kNumber},
                {"flops_profiler.profile_step", kInteger},
                {"flops_profiler.module_depth", kInteger},
                {"flops_profiler.top_modules", kInteger},
                {"flops_profiler.detailed", kBoolean},
                {"flops_profiler.output_file", kText},
                {"comms_logger.enabled", kBoolean},
                {"comms_logger.prof_all", kBoolean},
                {"comms_logger.prof_ops", kList},
                {"comms_logger.verbose", kBoolean},
                {"comms_logger.debug", kBoolean},
                {"tensorboard.enabled", kBoolean},
                {"tensorboard.output_path", kText},
                {"tensorboard.job_name", kText},
                {"csv_monitor.enabled", kBoolean},
                {"csv_monitor.output_path", kText},
                {"csv_monitor.job_name", kText},
                {"wandb.enabled", kBoolean},
                {"wandb.group", kText},
                {"wandb.team", kText},
                {"wandb.project", kText},
                {"comet.enabled", kBoolean},
                {"comet.samples_log_interval", kInteger},
                {"comet.project", kText},
                {"comet.workspace", kText},
                {"comet.api_key", kText},
                {"comet.experiment_name", kText},
                {"comet.experiment_key", kText},
                {"comet.online", kBoolean},
                {"comet.mode", kText},
                {"timers.throughput.enabled", kBoolean},
                {"timers.throughput.synchronized", kBoolean}});
  append_inert(all, "nothing here depends on it",
               {{"zero_allow_untested_optimizer", kBoolean},
                {"zero_force_ds_cpu_optimizer", kBoolean},
                {"disable_python_gc", kBoolean},
                {"vocabulary_size", kInteger},
                {"seq_parallel_communication_data_type", kText},
                {"use_data_before_expert_parallelism", kBoolean},
                {"bf16.immediate_grad_update", kBoolean},
                {"bf16.check_grad_overflow", kBoolean},
                {"torch_autocast.dtype", kText},
                {"torch_autocast.lower_precision_safe_modules", kList},
                {"data_types.buffer_dtype", kText},
                {"data_types.keep_in_fp32_modules", kAny}});
}

}  // namespace

std::span<const DsKey> deepspeed_keys() {
  static const Keys table = [] {
    Keys all;
    append(all, batch_and_precision());
    append(all, optimizer_and_scheduler());
    append(all, zero_and_offload());
    append(all, reporting_and_rest());
    append_inert_zero(all);
    append_inert_rest(all);
    return all;
  }();
  return table;
}

}  // namespace strata::config
