// Records of precision, sharding and offload.
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

constexpr std::string_view kAlways = "always so here";
// More than any cluster has, and what an int can hold.
constexpr double kMostRanks = 1 << 20;

std::vector<Setting> precision_settings() {
  return {
      {.name = "bf16",
       .field = STRATA_FIELD(shard.bf16),
       .help = "compute in bfloat16 (CPUs without it compute in float32)",
       .peer = "SFTConfig"},
      {.name = "fp16",
       .field = STRATA_FIELD(shard.fp16),
       .help =
           "round weights to float16 and scale the loss against underflow (turns bf16 off; CPUs "
           "compute in float32)",
       .peer = "TrainingArguments",
       .in_accelerate_file = true},
      {.name = "mixed_precision",
       .kind = Kind::kTranslated,
       .choices = {"no", "bf16", "fp16"},
       .synonyms = {{"false", "no"}, {"off", "no"}},
       .refused = {"fp8"},
       .help = "no: neither bf16 nor fp16; bf16: bf16 true; fp16: fp16 true",
       .peer = "accelerate launch",
       .scope = Scope::kBoth,
       .in_accelerate_file = true},
      {.name = "fsdp_param_dtype",
       .aliases = {"param_dtype"},
       .field = STRATA_FIELD(shard.param_dtype),
       .choices = {"auto", "float32", "bfloat16", "float16"},
       .synonyms = {{"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}},
       .help =
           "type to which trained weights are rounded when they are gathered; auto: as bf16 and "
           "fp16 say",
       .peer = "MixedPrecision"},
      {.name = "fsdp_reduce_dtype",
       .aliases = {"reduce_dtype"},
       .field = STRATA_FIELD(shard.reduce_dtype),
       .choices = {"float32", "bfloat16", "float16"},
       .synonyms = {{"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}},
       .help = "type of gradients while they are summed over ranks",
       .peer = "MixedPrecision"},
      {.name = "fsdp_buffer_dtype",
       .aliases = {"buffer_dtype"},
       .field = STRATA_FIELD(shard.buffer_dtype),
       .choices = {"float32", "bfloat16", "float16"},
       .synonyms = {{"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}},
       .help = "type to which a model's buffers (its rotary frequencies) are rounded; below "
               "float32 distant positions become inexact",
       .peer = "MixedPrecision"},
      {.name = "fp16_loss_scale",
       .field = STRATA_FIELD(shard.loss_scale),
       .range = {.min = 0},
       .help = "fixed scale of the loss with fp16; 0: adjusted while training",
       .peer = "Strata"},
      {.name = "fp16_initial_scale",
       .field = STRATA_FIELD(shard.initial_loss_scale),
       .range = {.min = 1},
       .help = "first scale of the loss with fp16",
       .peer = "GradScaler (init_scale)"},
      {.name = "fp16_scale_window",
       .field = STRATA_FIELD(shard.loss_scale_window),
       .range = {.min = 1},
       .help = "updates without overflow after which the scale doubles",
       .peer = "GradScaler (growth_interval)"},
      {.name = "fp16_hysteresis",
       .field = STRATA_FIELD(shard.loss_scale_hysteresis),
       .range = {.min = 1},
       .help = "overflows before the scale is halved",
       .peer = "Strata"},
      {.name = "fp16_min_scale",
       .field = STRATA_FIELD(shard.min_loss_scale),
       .range = {.min = 0},
       .help = "the run ends when the scale would fall below this",
       .peer = "Strata"},
      {.name = "gradient_checkpointing",
       .aliases = {"use_gradient_checkpointing"},
       .field = STRATA_FIELD(shard.gradient_checkpointing),
       .help = "recompute each block in the backward pass instead of keeping its activations",
       .peer = "SFTConfig"},
      {.name = "gradient_checkpointing_mode",
       .aliases = {"activation_checkpointing_mode"},
       .field = STRATA_FIELD(shard.checkpointing_mode),
       .choices = {"full", "attention", "selective", "auto"},
       .help =
           "full: keep only a block's input; attention: also keep what attention computed and, "
           "where its projection is added to the residual directly, that sum; selective: keep what "
           "is costly to compute (matrix products, attention) and recompute norms and activation "
           "functions; auto: the least recomputation that fits into memory, according to the plan",
       .peer = "torchtitan (activation_checkpoint.mode)"},
      {.name = "gradient_checkpointing_layers",
       .aliases = {"recompute_num_layers"},
       .field = STRATA_FIELD(shard.checkpointing_layers),
       .range = {.min = 0},
       .help = "recompute only this many layers, the first ones; 0: all",
       .peer = "Megatron-LM (recompute_num_layers)"},
      {.name = "gradient_checkpointing_rest",
       .field = STRATA_FIELD(shard.checkpointing_rest),
       .choices = {"attention", "selective", "none"},
       .help = "what the layers after the first gradient_checkpointing_layers keep, as in "
               "gradient_checkpointing_mode; none: everything",
       .peer = "Strata"},
      {.name = "memory_budget",
       .field = STRATA_FIELD(shard.memory_budget),
       .help = "memory that a rank may use, such as 40GB, for gradient_checkpointing_mode auto and "
               "auto_find_batch_size; empty: nine tenths of what is free",
       .peer = "Strata"},
      {.name = "activation_checkpointing",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"none", "selective", "attention", "full", "auto"},
       .help = "none: gradient_checkpointing false; the others (true: full): "
               "gradient_checkpointing true in this mode",
       .peer = "torchtitan (activation_checkpoint.mode)"},
      {.name = "activation_checkpointing_kwargs",
       .kind = Kind::kTranslated,
       .help = "mapping (or its JSON text) of offload (true: activation_offloading true) and "
               "every_n_layers (1; gradient_checkpointing_layers chooses layers); "
               "torch.utils.checkpoint's other keys have no effect",
       .peer = "TrainingArguments"},
      {.name = "gradient_checkpointing_kwargs",
       .kind = Kind::kTranslated,
       .help = "older name of activation_checkpointing_kwargs, which wins if both are given",
       .peer = "TrainingArguments"},
      {.name = "activation_offloading",
       .field = STRATA_FIELD(shard.activation_offloading),
       .is_switch = true,
       .synonyms = {{"none", "false"}, {"cpu", "true"}, {"nvme", "disk"}},
       .help = "keep inputs of recomputed layers, until their backward pass, in host memory (true; "
               "on CPUs always so) or in files (disk; on CPUs only)",
       .peer = "SFTConfig"},
      {.name = "activation_offloading_path",
       .field = STRATA_FIELD(shard.activation_offloading_path),
       .synonyms = {{"none", ""}},
       .is_path = true,
       .help = "existing folder on a disk, for activation_offloading disk",
       .peer = "Strata"},
      {.name = "ddp_timeout",
       .field = STRATA_FIELD(shard.ddp_timeout_s),
       .range = {.min = 1},
       .help = "seconds that a rank waits for the others",
       .peer = "TrainingArguments"},
      {.name = "use_cpu",
       .aliases = {"cpu", "no_cuda"},
       .field = STRATA_FIELD(launch.cpu),
       .help = "run on the CPU even if there are GPUs",
       .peer = "accelerate launch",
       .scope = Scope::kBoth,
       .in_accelerate_file = true},
  };
}

std::vector<Setting> fsdp_settings() {
  return {
      {.name = "fsdp_sharding_strategy",
       .aliases = {"sharding_strategy"},
       .field = STRATA_FIELD(shard.sharding_strategy),
       .synonyms = {{"1", "FULL_SHARD"},
                    {"2", "SHARD_GRAD_OP"},
                    {"3", "NO_SHARD"},
                    {"4", "HYBRID_SHARD"},
                    {"5", "HYBRID_SHARD_ZERO2"},
                    {"ZERO3", "FULL_SHARD"}},
       .help = "what is sharded: parameters, gradients and optimizer state (FULL_SHARD); the "
               "latter two, with whole parameters from forward to backward (SHARD_GRAD_OP) or "
               "always (ZERO2); optimizer state (ZERO1); nothing (NO_SHARD); HYBRID: within a "
               "machine only"},
      {.name = "zero_stage",
       .kind = Kind::kTranslated,
       .choices = {"0", "1", "2", "3"},
       .help = "0: NO_SHARD; 1: ZERO1; 2: ZERO2; 3: FULL_SHARD"},
      {.name = "parallelism_config_dp_shard_size",
       .aliases = {"dp_shard_size"},
       .field = STRATA_FIELD(shard.dp_shard_size),
       .range = {.min = 0, .max = kMostRanks},
       .help = "ranks over which a copy of the model is sharded; 0: all (with HYBRID those of a "
               "machine)"},
      {.name = "parallelism_config_dp_replicate_size",
       .aliases = {"dp_replicate_size"},
       .field = STRATA_FIELD(shard.dp_replicate_size),
       .range = {.min = 0, .max = kMostRanks},
       .help = "sharded copies of the model; 0: one (with HYBRID one per machine)"},
      {.name = "parallelism_config_sp_size",
       .aliases = {"sequence_parallel_size"},
       .field = STRATA_FIELD(shard.sequence_parallel_size),
       .range = {.min = 1, .max = kMostRanks},
       .help = "ranks that share the tokens of a micro-batch, for long rows (sft): each computes "
               "part of them, and in attention part of the heads"},
      {.name = "parallelism_config_cp_size",
       .kind = Kind::kTranslated,
       .range = {.min = 1, .max = kMostRanks},
       .help = "above 1: parallelism_config_sp_size; there is only one way to divide rows"},
      {.name = "fsdp_backward_prefetch",
       .aliases = {"backward_prefetch", "fsdp_backward_prefetch_policy"},
       .field = STRATA_FIELD(shard.backward_prefetch),
       .synonyms = {{"1", "BACKWARD_PRE"}, {"2", "BACKWARD_POST"}},
       .help = "gather the next unit before or after the gradients of this one, or not in advance"},
      {.name = "fsdp_forward_prefetch",
       .aliases = {"forward_prefetch"},
       .field = STRATA_FIELD(shard.forward_prefetch),
       .help = "gather the next unit in advance in the forward pass"},
      {.name = "fsdp_limit_all_gathers",
       .aliases = {"limit_all_gathers"},
       .field = STRATA_FIELD(shard.limit_all_gathers),
       .range = {.min = 1, .max = kMostRanks},
       .choices = {"true", "false"},
       .help = "units that are gathered at a time: true: 2; false: 4; or a number"},
      {.name = "sync_each_batch",
       .field = STRATA_FIELD(shard.sync_each_batch),
       .help = "sum gradients over the ranks after every micro-batch; false: keep them whole until "
               "the last one of an update (less traffic, more memory)",
       .peer = "GradientAccumulationPlugin"},
      {.name = "fsdp",
       .kind = Kind::kTranslated,
       .help = "full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2; auto_wrap "
               "next to it has no effect",
       .peer = "TrainingArguments"},
      {.name = "fsdp_config",
       .kind = Kind::kSource,
       .is_path = true,
       .help =
           "fsdp_ settings: a YAML or JSON file, a folder with fsdp_config.json or .yaml, or the "
           "text of such a file",
       .peer = "TrainingArguments"},
      {.name = "fsdp_version",
       .kind = Kind::kUnbound,
       .harmless = {"1", "2"},
       .help = "the keys of both versions are understood"},
      {.name = "fsdp_reshard_after_forward",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .range = {.min = 2, .max = kMostRanks},
       .choices = {"true", "false", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                   "HYBRID_SHARD_ZERO2"},
       .help = "true: FULL_SHARD; false: SHARD_GRAD_OP; a number: fsdp_reshard_group_size; or the "
               "name of a strategy"},
      {.name = "fsdp_reshard_group_size",
       .field = STRATA_FIELD(shard.reshard_group_size),
       .range = {.min = 0, .max = kMostRanks},
       .help =
           "neighbouring ranks over which a unit is spread between its forward and its backward "
           "pass, so that gathering it again stays among them; 0: all"},
      {.name = "fsdp_activation_checkpointing",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help =
           "true: gradient_checkpointing, even if that is false (Trainer accepts it only then); "
           "false: no effect"},
      {.name = "fsdp_offload_params",
       .aliases = {"fsdp_cpu_offload"},
       .field = STRATA_FIELD(shard.offload_params),
       .help = "keep parameters, gradients and optimizer state in host memory (on CPUs always so)"},
      {.name = "fsdp_activation_checkpointing_offload",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"false", "none"},
       .help = "set activation_offloading"},
      {.name = "fsdp_auto_wrap_policy",
       .aliases = {"fsdp_wrap_policy"},
       .field = STRATA_FIELD(shard.auto_wrap_policy),
       .help = "what is gathered at a time: each layer; neighbouring layers, until they have "
               "fsdp_min_num_params; the whole model"},
      {.name = "fsdp_transformer_layer_cls_to_wrap",
       .aliases = {"fsdp_transformer_cls_to_wrap"},
       .field = STRATA_FIELD(shard.layer_classes),
       .help =
           "classes of the layers that are gathered one by one, as named in transformers; default: "
           "every layer"},
      {.name = "fsdp_min_num_params",
       .aliases = {"fsdp_min_num_param", "min_num_param", "min_num_params"},
       .field = STRATA_FIELD(shard.min_num_params),
       .range = {.min = 0},
       .help = "fewest parameters of a unit with SIZE_BASED_WRAP; 0: as NO_WRAP"},
      {.name = "fsdp_state_dict_type",
       .field = STRATA_FIELD(shard.state_dict_type),
       .synonyms = {{"none", "SHARDED_STATE_DICT"}},
       .help = "what a checkpoint holds: one file of shards per rank (LOCAL_STATE_DICT is the same "
               "here), or whole tensors in a folder that from_pretrained() loads; a run resumes "
               "from either, and its result is always a full model or adapter"},
      {.name = "fsdp_use_orig_params",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"true", "false", "none"},
       .help = kAlways},
      {.name = "fsdp_cpu_ram_efficient_loading",
       .field = STRATA_FIELD(shard.cpu_ram_efficient_loading),
       .help = "rank 0 reads the weights and sends each rank its shard, for machines that share no "
               "files; false: every rank reads its own shard"},
      {.name = "fsdp_sync_module_states",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"true", "false", "none"},
       .help = "every rank begins with the same weights: from its own shard of the files, or from "
               "rank 0 (fsdp_cpu_ram_efficient_loading)"},
      {.name = "fsdp_ignored_modules",
       .kind = Kind::kUnbound,
       .harmless = {"none"},
       .help = "every parameter is sharded"},
  };
}

std::vector<Setting> offload_settings() {
  constexpr std::string_view kDeepSpeed = "DeepSpeed";
  return {
      {.name = "offload_param_device",
       .field = STRATA_FIELD(shard.offload_param_device),
       .help = "where parameters are kept: the device, host memory, or files"},
      {.name = "offload_param_nvme_path",
       .field = STRATA_FIELD(shard.offload_param_nvme_path),
       .synonyms = {{"none", ""}},
       .is_path = true,
       .help = "existing folder on a disk, for offload_param_device nvme"},
      {.name = "offload_optimizer_device",
       .field = STRATA_FIELD(shard.offload_optimizer_device),
       .help = "where optimizer state is kept: the device, host memory, or files"},
      {.name = "offload_optimizer_nvme_path",
       .field = STRATA_FIELD(shard.offload_optimizer_nvme_path),
       .synonyms = {{"none", ""}},
       .is_path = true,
       .help = "existing folder on a disk, for offload_optimizer_device nvme"},
      {.name = "sub_group_size",
       .field = STRATA_FIELD(shard.sub_group_size),
       .range = {.min = 1},
       .help = "elements of offloaded state that are read, updated and written at once; three such "
               "groups are in memory at a time",
       .peer = kDeepSpeed},
      {.name = "aio_block_size",
       .field = STRATA_FIELD(shard.aio_block_size),
       .range = {.min = 4096},
       .help = "smallest request to the file system, in bytes",
       .peer = kDeepSpeed},
      {.name = "aio_queue_depth",
       .field = STRATA_FIELD(shard.aio_queue_depth),
       .range = {.min = 1, .max = 1024},
       .help = "most requests into which one transfer is divided",
       .peer = kDeepSpeed},
  };
}

}  // namespace

std::vector<Setting> sharding_settings() {
  std::vector<Setting> all;
  const auto append = [&](std::string_view group, std::vector<Setting> part, bool for_both) {
    for (Setting& setting : part) {
      setting.group = group;
      if (setting.peer.empty()) setting.peer = "accelerate launch";
      if (for_both) setting.scope = Scope::kBoth;
      all.push_back(std::move(setting));
    }
  };
  append("precision and memory", precision_settings(), /*for_both=*/false);
  append("sharding", fsdp_settings(), /*for_both=*/true);
  append("offload", offload_settings(), /*for_both=*/true);
  return all;
}

}  // namespace strata::config
