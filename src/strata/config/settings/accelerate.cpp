// Records of accelerate's sections for DeepSpeed, Megatron-LM, fp8, parallelism and MPI, and of the
// launch flags of the same names.
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

constexpr std::string_view kMachines = "start strata launch on each machine, or use strata slurm";
constexpr std::string_view kMegatron = "use FSDP or DeepSpeed settings";
constexpr std::string_view kFp8 = "use bf16";
constexpr std::string_view kTpu = "TPUs are not supported";
constexpr std::string_view kOwnSequences =
    "there is one way to share rows between ranks, with the "
    "same losses";

struct Known {
  std::string_view name;
  std::vector<std::string_view> harmless;  // first: accelerate's default; "*": any
  std::string_view help;
  bool is_switch = false;
};

std::vector<Setting> deepspeed_settings() {
  return {
      {.name = "deepspeed",
       .aliases = {"deepspeed_config_file", "deepspeed_config"},
       .kind = Kind::kSource,
       .is_path = true,
       .help = "DeepSpeed's ds_config: a JSON file, or the text of one",
       .peer = "TrainingArguments"},
      {.name = "use_deepspeed",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help = "shard by zero_stage (2 unless set), whatever the file's distributed_type",
       .peer = "accelerate launch"},
      {.name = "zero3_save_16bit_model",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false", "none"},
       .help = "true: save_dtype compute",
       .peer = "accelerate launch"},
  };
}

std::vector<Known> deepspeed_flags() {
  return {
      {"zero3_init_flag", {"false", "true", "none"}, "every rank reads only its own shard", true},
      {"deepspeed_hostfile", {"none"}, kMachines},
      {"deepspeed_exclusion_filter", {"none"}, kMachines},
      {"deepspeed_inclusion_filter", {"none"}, kMachines},
      {"deepspeed_multinode_launcher", {"standard", "none", "*"}, kMachines},
      {"deepspeed_moe_layer_cls_names",
       {"none", "MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock"},
       "a decoder layer with all its experts is gathered at once"},
  };
}

std::vector<Known> megatron_flags() {
  return {
      {"megatron_lm_tp_degree", {"1"}, kMegatron},
      {"megatron_lm_pp_degree", {"1"}, kMegatron},
      {"megatron_lm_num_micro_batches", {"none"}, kMegatron},
      {"megatron_lm_sequence_parallelism", {"none", "false"}, kMegatron},
      {"megatron_lm_recompute_activations", {"none", "false", "true"}, kMegatron},
      {"megatron_lm_use_distributed_optimizer", {"none", "false", "true"}, kMegatron},
      {"megatron_lm_gradient_clipping", {"1.0"}, kMegatron},
      {"megatron_lm_use_custom_fsdp", {"false"}, kMegatron, true},
      {"megatron_lm_no_load_optim", {"false"}, kMegatron, true},
      {"megatron_lm_no_save_optim", {"false"}, kMegatron, true},
      {"megatron_lm_eod_mask_loss", {"false"}, kMegatron, true},
      {"megatron_lm_overlap_cpu_optimizer_d2h_h2d", {"false"}, kMegatron, true},
      {"megatron_lm_optimizer_cpu_offload", {"false"}, kMegatron, true},
      {"megatron_lm_use_precision_aware_optimizer", {"false"}, kMegatron, true},
      {"megatron_lm_decoder_last_pipeline_num_layers", {"none"}, kMegatron},
      {"megatron_lm_recompute_granularity", {"none"}, kMegatron},
      {"megatron_lm_recompute_method", {"none"}, kMegatron},
      {"megatron_lm_recompute_num_layers", {"none"}, kMegatron},
      {"megatron_lm_attention_backend", {"none"}, kMegatron},
      {"megatron_lm_expert_model_parallel_size", {"none", "1"}, kMegatron},
      {"megatron_lm_context_parallel_size", {"none", "1"}, kMegatron},
      {"megatron_lm_attention_dropout", {"none"}, kMegatron},
      {"megatron_lm_hidden_dropout", {"none"}, kMegatron},
      {"megatron_lm_attention_softmax_in_fp32", {"none", "true"}, kMegatron},
      {"megatron_lm_expert_tensor_parallel_size", {"none", "1"}, kMegatron},
      {"megatron_lm_calculate_per_token_loss", {"none"}, kMegatron},
      {"megatron_lm_use_rotary_position_embeddings", {"none"}, kMegatron},
  };
}

std::vector<Known> fp8_flags() {
  return {
      {"fp8_backend", {"none"}, kFp8},
      {"fp8_use_autocast_during_eval", {"false"}, kFp8, true},
      {"fp8_margin", {"0"}, kFp8},
      {"fp8_interval", {"1"}, kFp8},
      {"fp8_format", {"hybrid"}, kFp8},
      {"fp8_amax_history_len", {"1024"}, kFp8},
      {"fp8_amax_compute_algo", {"most_recent"}, kFp8},
      {"fp8_override_linear_precision", {"none", "false,false,false"}, kFp8},
      {"fp8_opt_level", {"o2"}, kFp8},
      {"fp8_enable_fsdp_float8_all_gather", {"true"}, kFp8, true},
      {"fp8_pad_inner_dim", {"true"}, kFp8, true},
  };
}

std::vector<Known> other_flags() {
  return {
      {"parallelism_config_tp_size", {"1"}, "layers are not split across ranks"},
      {"parallelism_config_cp_backend", {"torch", "*"}, kOwnSequences},
      {"parallelism_config_cp_comm_strategy", {"allgather", "*"}, kOwnSequences},
      {"parallelism_config_sp_backend", {"deepspeed", "*"}, kOwnSequences},
      {"parallelism_config_sp_seq_length", {"none", "*"}, "rows may have any length"},
      {"parallelism_config_sp_seq_length_is_variable",
       {"true", "*"},
       "rows may have any length",
       true},
      {"parallelism_config_sp_attn_implementation", {"sdpa", "*"}, kOwnSequences},
      {"mpirun_ccl", {"none", "*"}, "start the ranks with mpirun itself"},
      {"no_tpu_cluster", {"true"}, kTpu, true},
      {"vm", {"none"}, kTpu},
      {"env", {"none"}, "set variables in the shell, before the command"},
      {"aws_access_key_id", {"none"}, "start strata launch on the machines themselves"},
      {"aws_secret_access_key", {"none"}, "start strata launch on the machines themselves"},
  };
}

}  // namespace

std::vector<Setting> accelerate_section_settings() {
  std::vector<Setting> all;
  for (Setting& setting : deepspeed_settings()) {
    setting.group = "DeepSpeed";
    setting.scope = Scope::kBoth;
    all.push_back(std::move(setting));
  }
  for (auto part : {deepspeed_flags, megatron_flags, fp8_flags, other_flags}) {
    for (Known& known : part()) {
      all.push_back({.name = known.name,
                     .kind = Kind::kUnbound,
                     .is_switch = known.is_switch,
                     .harmless = std::move(known.harmless),
                     .help = known.help,
                     .peer = "accelerate launch",
                     .group = "launch",
                     .scope = Scope::kLaunch});
    }
  }
  return all;
}

}  // namespace strata::config
