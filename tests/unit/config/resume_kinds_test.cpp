// Oracle: the lists below. A setting that is new belongs in one of them: whoever adds it decides
// what a run that is resumed with another value of it must be told.
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

using Names = std::set<std::string>;

const std::map<Resume, const char*> kExpected = {
    {Resume::kTraining,
     "tokenizer_name router_aux_loss_coef dataset_name train_file dataset_config "
     "dataset_streaming dataset_weights dataset_columns on_bad_row long_rows splits "
     "dataset_text_field max_length packing packing_strategy completion_only_loss "
     "assistant_only_loss shuffle_dataset chat_template_path chat_template_format "
     "add_special_tokens append_concat_token eos_token pad_token text_column summary_column "
     "source_lang target_lang source_prefix max_source_length max_target_length learning_rate "
     "weight_decay decay_norms_and_biases adam_beta1 adam_beta2 adam_epsilon max_grad_norm "
     "label_smoothing_factor "
     "neftune_noise_alpha lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio "
     "dataloader_drop_last train_sampling_strategy beta loss_type loss_weights label_smoothing "
     "f_divergence_type f_alpha_divergence_coef discopop_tau ld_alpha use_weighting "
     "ref_model_mixup_alpha ref_model_sync_steps disable_dropout "
     "truncation_mode desirable_weight undesirable_weight center_rewards_coefficient cpo_alpha "
     "simpo_gamma alpha "
     "task_name text_column_names text_pair_column_names text_column_delimiter label_column_name "
     "do_regression "
     "ignore_mismatched_sizes lang"},
    {Resume::kBoth,
     "load_in_4bit load_in_8bit bnb_4bit_quant_type bnb_4bit_blocksize "
     "bnb_4bit_use_double_quant bnb_4bit_compute_dtype llm_int8_threshold "
     "llm_int8_skip_modules use_peft peft_type feedforward_modules lora_r lora_alpha "
     "lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save "
     "trainable_token_indices ensure_weight_tying use_rslora use_dora init_lora_weights "
     "loftq_bits loftq_iter d_initial projection_prng_key init_weights num_virtual_tokens "
     "prompt_tuning_init prompt_tuning_init_text prefix_projection encoder_hidden_size "
     "rank_pattern alpha_pattern exclude_modules layers_to_transform layers_pattern bias "
     "lora_bias optim optim_args sync_ref_model"},
    {Resume::kTensors, "model_name_or_path num_labels"},
    {Resume::kFree,
     "recipe model_revision config_name dtype cache_dir mean_resizing resize_to_multiple_of "
     "adapter_name_or_path validation_file eval_packing dataset_num_proc dataset_cache "
     "predict_with_generate generation_max_length generation_num_beams forced_bos_token "
     "mxfp4_dequantize fp8_dequantize "
     "int_dequantize "
     "save_projection "
     "output_dir "
     "per_device_train_batch_size auto_find_batch_size per_device_eval_batch_size "
     "gradient_accumulation_steps num_train_epochs max_steps seed data_seed logging_strategy "
     "logging_steps logging_first_step report_to logging_dir wall_clock_breakdown "
     "eval_strategy eval_steps eval_delay eval_on_start save_strategy save_steps "
     "save_total_limit load_best_model_at_end metric_for_best_model greater_is_better "
     "early_stopping_patience early_stopping_threshold save_only_model async_save "
     "full_determinism tf32 on_nan max_loss_spike resume_from_checkpoint max_shard_size "
     "save_dtype rehearse profile_step disable_tqdm precompute_ref_batch_size bf16 fp16 "
     "fsdp_param_dtype fsdp_reduce_dtype fsdp_buffer_dtype fp16_loss_scale fp16_initial_scale "
     "fp16_scale_window fp16_hysteresis fp16_min_scale gradient_checkpointing "
     "gradient_checkpointing_mode gradient_checkpointing_layers gradient_checkpointing_rest "
     "memory_budget activation_offloading activation_offloading_path ddp_timeout use_cpu "
     "fsdp_sharding_strategy parallelism_config_dp_shard_size "
     "parallelism_config_dp_replicate_size parallelism_config_sp_size fsdp_backward_prefetch "
     "fsdp_forward_prefetch fsdp_limit_all_gathers sync_each_batch fsdp_reshard_group_size "
     "fsdp_offload_params fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap "
     "fsdp_min_num_params fsdp_state_dict_type fsdp_cpu_ram_efficient_loading "
     "offload_param_device offload_param_nvme_path offload_optimizer_device "
     "offload_optimizer_nvme_path sub_group_size aio_block_size aio_queue_depth num_processes "
     "num_machines machine_rank main_process_ip main_process_port gpu_ids "
     "num_cpu_threads_per_process log_dir tee enable_cpu_affinity max_restarts rdzv_backend "
     "rdzv_conf hang_timeout dry_run no_python"}};

Names words_of(const char* text) {
  std::istringstream stream(text);
  return Names(std::istream_iterator<std::string>(stream), {});
}

TEST(SettingsTable, SaysWhatAnotherValueMeansForAResumedRun) {
  std::map<Resume, Names> found;
  for (const Setting& setting : settings_table()) {
    if (setting.kind == Kind::kBound) {
      found[setting.resume].emplace(setting.name);
    } else {
      EXPECT_EQ(setting.resume, Resume::kFree) << setting.name << " becomes others, which say it";
    }
  }
  for (const auto& [kind, names] : kExpected) {
    EXPECT_THAT(found[kind], ::testing::ContainerEq(words_of(names))) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace strata::config
