// Settings of the Hugging Face stack that this version does not support: values that ask for
// nothing are accepted, with a warning that names the flag; all others are refused.
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

struct Known {
  std::string_view name;
  std::vector<std::string_view> harmless;  // first: the peer's default; "*": any
  std::string_view help;
  bool is_switch = false;
};

std::vector<Setting> unsupported(std::string_view peer, std::vector<Known> known) {
  std::vector<Setting> all;
  for (Known& one : known) {
    all.push_back({.name = one.name,
                   .kind = Kind::kUnbound,
                   .is_switch = one.is_switch,
                   .harmless = std::move(one.harmless),
                   .help = one.help,
                   .peer = peer,
                   .group = "known from other programs"});
  }
  return all;
}

constexpr std::string_view kReference =
    "the reference is the model that training starts from; for a new adapter, its base";
constexpr std::string_view kHub = "nothing is uploaded; the result stays in output_dir";
constexpr std::string_view kMetrics = "metrics go to metrics.jsonl in output_dir";
constexpr std::string_view kLoader = "batches are made in threads of the rank";
constexpr std::string_view kEval = "evaluation computes the loss only";
constexpr std::string_view kDdp = "ranks communicate by the fsdp settings";
constexpr std::string_view kTpu = "TPUs are not supported";
constexpr std::string_view kCompiler = "nothing is compiled at run time";

std::vector<Known> optimization() {
  return {
      {"optim_target_modules", {"none"}, "use the settings of adamw"},
      {"average_tokens_across_devices", {"true"}, "the loss is the mean over all ranks", true},
      {"bf16_full_eval", {"false"}, "evaluation computes in the same types as training", true},
      {"fp16_full_eval", {"false"}, "evaluation computes in the same types as training", true},
      {"fp16_opt_level", {"o1", "*"}, "apex is not used"},
      {"half_precision_backend", {"auto", "*"}, "apex is not used"},
      {"fp16_backend", {"auto", "*"}, "apex is not used"},
      {"torch_compile", {"false", "*"}, kCompiler, true},
      {"torch_compile_backend", {"none", "*"}, kCompiler},
      {"torch_compile_mode", {"none", "*"}, kCompiler},
      {"use_liger_kernel", {"false", "*"}, "fused operations are always used", true},
      {"liger_kernel_config", {"none", "*"}, "fused operations are always used"},
      {"use_cache", {"false", "*"}, "training keeps no cache", true},
      {"torch_empty_cache_steps", {"none", "*"}, "memory is laid out before the run"},
  };
}

std::vector<Known> reporting() {
  return {
      {"log_level", {"passive", "*"}, "messages have one level"},
      {"log_level_replica", {"warning", "*"}, "messages have one level"},
      {"log_on_each_node", {"true", "*"}, "rank 0 logs", true},
      {"logging_nan_inf_filter", {"true"}, "leave it on", true},
      {"include_num_input_tokens_seen", {"no", "false", "*"}, "tokens are always counted"},
      {"include_tokens_per_second", {"false", "*"}, "always reported", true},
      {"run_name", {"none", "*"}, kMetrics},
      {"project", {"huggingface", "*"}, kMetrics},
      {"trackio_space_id", {"none", "*"}, kMetrics},
      {"trackio_bucket_id", {"none", "*"}, kMetrics},
      {"trackio_static_space_id", {"none", "*"}, kMetrics},
      {"debug", {"", "none", "false", "*"}, "ranks are always checked", true},
      {"skip_memory_metrics", {"true", "*"}, "memory is always reported", true},
      {"push_to_hub", {"false", "*"}, kHub, true},
      {"push_to_hub_model_id", {"none", "*"}, kHub},
      {"hub_token", {"none", "*"}, kHub},
      {"hub_private_repo", {"none", "*"}, kHub, true},
      {"hub_model_id", {"none", "*"}, kHub},
      {"hub_strategy", {"every_save", "*"}, kHub},
      {"hub_always_push", {"false", "*"}, kHub, true},
      {"hub_revision", {"none", "*"}, kHub},
  };
}

std::vector<Known> evaluation_and_saving() {
  return {
      {"prediction_loss_only", {"false", "*"}, kEval, true},
      {"eval_do_concat_batches", {"true", "*"}, kEval, true},
      {"eval_use_gather_object", {"false", "*"}, kEval, true},
      {"eval_accumulation_steps", {"none", "*"}, kEval},
      {"include_for_metrics", {"none"}, kEval},
      {"include_inputs_for_metrics", {"false"}, kEval, true},
      {"batch_eval_metrics", {"false", "*"}, kEval, true},
      {"save_on_each_node", {"false", "*"}, "every rank writes its own shard", true},
      {"save_safetensors", {"true"}, "weights are written as safetensors", true},
      {"enable_jit_checkpoint", {"false"}, "set save_steps", true},
      {"ignore_data_skip", {"false"}, "resuming jumps to its place in the data", true},
      {"restore_callback_states_from_checkpoint", {"false"}, "there are no callbacks", true},
      {"overwrite_output_dir",
       {"false", "*"},
       "checkpoints in output_dir stay unless rotated",
       true},
      {"do_train", {"false", "true"}, "the recipe trains", true},
      {"do_predict", {"false"}, "leave it off", true},
  };
}

std::vector<Known> loading_and_ranks() {
  return {
      {"dataloader_num_workers", {"0", "*"}, kLoader},
      {"dataloader_pin_memory", {"true", "*"}, kLoader, true},
      {"dataloader_persistent_workers", {"false", "*"}, kLoader, true},
      {"dataloader_prefetch_factor", {"none", "*"}, kLoader},
      {"dataloader_multiprocessing_context", {"none", "*"}, kLoader},
      {"dataloader_in_order", {"true", "*"}, kLoader, true},
      {"remove_unused_columns", {"true", "*"}, "only known columns are read", true},
      {"label_names", {"none"}, "labels are made from the text"},
      {"length_column_name", {"length", "*"}, "lengths are counted"},
      {"local_rank", {"-1", "*"}, "ranks come from the launcher's environment"},
      // Keys of accelerator_config.
      {"split_batches", {"false"}, "per_device_train_batch_size is the rows of one rank", true},
      {"dispatch_batches", {"none", "false", "*"}, "every rank reads its own rows"},
      {"even_batches", {"true"}, "all ranks take the same number of batches", true},
      {"use_seedable_sampler", {"true"}, "the order of rows follows from the seed", true},
      {"non_blocking", {"false", "*"}, kLoader, true},
      {"gradient_accumulation_kwargs", {"none"}, "set gradient_accumulation_steps"},
      {"parallelism_config", {"none"}, "set parallelism_config_dp_shard_size and similar settings"},
      {"ddp_find_unused_parameters", {"none", "*"}, kDdp, true},
      {"ddp_bucket_cap_mb", {"none", "*"}, kDdp},
      {"ddp_broadcast_buffers", {"none", "*"}, kDdp, true},
      {"ddp_static_graph", {"none", "*"}, kDdp, true},
      {"ddp_backend", {"none", "gloo", "nccl"}, kDdp},
      // Keys of fsdp_config, which Trainer fills in.
      {"fsdp_xla", {"false"}, kTpu, true},
      {"fsdp_xla_fsdp_v2", {"false"}, kTpu, true},
      {"fsdp_xla_fsdp_grad_ckpt", {"false"}, kTpu, true},
      {"fsdp_xla_fsdp_settings", {"none"}, kTpu},
  };
}

std::vector<Known> sft() {
  return {
      {"low_cpu_mem_usage", {"false", "*"}, "weights are always read in place", true},
      {"trust_remote_code", {"false", "*"}, "no code of a checkpoint is run", true},
      {"skip_prepare_dataset",
       {"false"},
       "rows with input_ids are recognised, and cut to max_length",
       true},
      {"dataset_batch_size", {"1000"}, "packing works on 1000 rows at a time"},
      {"padding_free", {"false", "*"}, "nothing is ever padded here", true},
      {"pad_to_multiple_of", {"auto", "none", "*"}, "padding has no influence on the result"},
      {"num_of_sequences", {"1024", "*"}, "packing reads all rows"},
      {"chars_per_token", {"3.6", "*"}, "packing counts tokens"},
      {"ignore_bias_buffers", {"false", "*"}, "buffers are not synchronised", true},
      {"attn_implementation", {"none", "*"}, "the attention operation is chosen by the device"},
      {"use_flash_attn", {"false", "*"}, "the attention operation is chosen by the device", true},
      {"use_reentrant", {"false", "*"}, "recomputation has no variants", true},
      {"use_unsloth", {"false", "*"}, "fused operations are always used", true},
  };
}

std::vector<Known> dpo() {
  return {
      {"precompute_ref_log_probs",
       {"false", "*"},
       "the reference is evaluated once, before the first step, or after each of its updates",
       true},
      // Settings of earlier versions.
      {"reference_free",
       {"false"},
       "the recipe dpo compares with a reference; use orpo or cpo, which have none",
       true},
      {"force_use_ref_model", {"false"}, kReference, true},
      {"model_adapter_name", {"none"}, kReference},
      {"ref_adapter_name", {"none"}, kReference},
      {"label_pad_token_id", {"-100", "*"}, "untrained tokens need no id"},
      {"padding_value", {"none", "*"}, "nothing is ever padded here"},
      {"max_completion_length", {"none"}, "use max_length, which covers prompt and answer"},
      {"is_encoder_decoder", {"none", "false"}, "the losses are those of causal models"},
      {"generate_during_eval", {"false"}, "evaluation computes the loss and the rewards", true},
      {"use_logits_to_keep", {"false", "*"}, "logits never exist as a whole", true},
      {"use_liger_loss", {"false", "*"}, "fused operations are always used", true},
  };
}

std::vector<Known> seq2seq() {
  return {
      {"ignore_pad_token_for_loss", {"true"}, "padding is never trained", true},
      {"pad_to_max_length", {"false", "*"}, "padding has no influence on the result", true},
      {"val_max_target_length", {"none"}, "set max_target_length"},
      {"generation_config", {"none"}, "the model's own generation_config.json is read"},
      {"sortish_sampler", {"false"}, "leave it off", true},
      {"test_file", {"none"}, "pass it as validation_file to evaluate on it"},
      {"max_train_samples",
       {"none"},
       "take a slice of dataset_name: --splits \"train[:100],test\""},
      {"max_eval_samples", {"none"}, "take a slice of dataset_name: --splits \"train,test[:100]\""},
      {"max_predict_samples", {"none", "*"}, "evaluations are the only predictions"},
      {"overwrite_cache", {"false", "*"}, "the cache identifies files by content", true},
  };
}

std::vector<Known> classification() {
  return {
      {"metric_name",
       {"none", "accuracy", "f1", "mse"},
       "evaluations report accuracy and f1, for numbers mse; task_name sets GLUE's"},
      {"shuffle_train_dataset", {"false", "*"}, "every epoch has its own order", true},
      {"shuffle_seed", {"42", "*"}, "the order of rows follows from seed"},
      {"remove_splits", {"none", "*"}, "splits names the ones to read"},
      {"remove_columns", {"none", "*"}, "only known columns are read"},
  };
}

std::vector<Known> quantisation() {
  const std::vector<std::string_view> kStorageTypes = {"uint8",    "int8",    "float16",
                                                       "bfloat16", "float32", "float64"};
  return {
      {"bnb_4bit_quant_storage", kStorageTypes, "quantised weights are sharded as bytes"},
      {"bnb_4bit_quant_storage_dtype", kStorageTypes, "quantised weights are sharded as bytes"},
      {"llm_int8_enable_fp32_cpu_offload",
       {"false", "*"},
       "weights can be kept in any memory",
       true},
      {"llm_int8_has_fp16_weight", {"false"}, "the quantised base is frozen", true},
  };
}

std::vector<Known> lora() {
  return {
      {"lora_task_type", {"causal_lm", "seq_2_seq_lm", "seq_cls"}, "the recipe decides"},
      {"fan_in_fan_out", {"false"}, "leave it off", true},
      {"loftq_config", {"none"}, "use loftq_bits and loftq_iter"},
      {"layer_replication", {"none"}, "leave it out"},
      {"use_qalora", {"false"}, "leave it off", true},
  };
}

void append(std::vector<Setting>& all, std::vector<Setting> part) {
  for (Setting& setting : part) all.push_back(std::move(setting));
}

}  // namespace

std::vector<Setting> unsupported_trainer_settings() {
  std::vector<Setting> all;
  for (auto part : {optimization, reporting, evaluation_and_saving, loading_and_ranks}) {
    append(all, unsupported("TrainingArguments", part()));
  }
  for (Setting& setting : all) {
    // Names that accelerate's launcher or its files have too.
    if (setting.name == "debug") setting.scope = Scope::kBoth;
    if (setting.name == "debug" || setting.name == "parallelism_config") {
      setting.in_accelerate_file = true;
    }
  }
  return all;
}

std::vector<Setting> unsupported_sft_settings() {
  std::vector<Setting> all = unsupported("SFTConfig", sft());
  append(all, unsupported("DPOConfig", dpo()));
  append(all, unsupported("run_summarization.py", seq2seq()));
  append(all, unsupported("run_classification.py", classification()));
  return all;
}

std::vector<Setting> unsupported_lora_settings() {
  std::vector<Setting> all = unsupported("PEFT examples/sft", quantisation());
  append(all, unsupported("LoraConfig", lora()));
  return all;
}

}  // namespace strata::config
