#include "strata/config/foreign_names.h"

#include <algorithm>

#include <fmt/format.h>

#include "strata/base/text_distance.h"
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

constexpr std::string_view kMixture =
    "name the data sets in dataset_name, separated by commas, and their shares in dataset_weights";
constexpr std::string_view kSlices = "take slices: splits \"train[:95%],train[95%:]\"";
constexpr std::string_view kSelfChosen = "remove it: config.json and the tokenizer's files say it";
constexpr std::string_view kHubToken = "set HF_TOKEN, which is written to no file of the run";
constexpr std::string_view kKernels = "remove it: the device decides";
constexpr std::string_view kAnswers =
    "use assistant_only_loss or completion_only_loss, which find the answers without it";
constexpr std::string_view kSystem =
    "write it into the rows: a system message, or a column named system";
constexpr std::string_view kMeeting =
    "use main_process_ip and main_process_port, where the machines meet";
constexpr std::string_view kMachines = "start strata launch on each machine, or use strata slurm";
constexpr std::string_view kReference =
    "remove it: the reference is the model that training starts from, no other";
constexpr std::string_view kNoTeacher = "remove it: nothing is distilled here";
constexpr std::string_view kAdapterFile = "remove it: the adapter's file says it";
constexpr std::string_view kNoMegatron = "remove it: layers are not split across ranks";
constexpr std::string_view kMetrics = "remove it: metrics go to metrics.jsonl in output_dir";

constexpr ForeignName kNames[] = {
    // TRL's mixtures and alignment-handbook
    {"datasets", "dataset_name", kMixture},
    {"dataset_mixer", "dataset_name", kMixture},
    {"dataset_mixture", "dataset_name", kMixture},
    {"dataset_configs", "dataset_config"},
    {"dataset_splits", "splits"},
    {"test_split_size", "splits", kSlices},
    {"streaming", "dataset_streaming"},
    {"chat_template", "chat_template_path",
     "write the template to a file and name that in chat_template_path, or a built-in one in "
     "chat_template_format"},
    {"ref_model", "", kReference},
    {"ref_model_name_or_path", "", kReference},
    {"ref_model_init_kwargs", "", kReference},
    {"ref_model_revision", "", kReference},
    {"teacher_model_name_or_path", "", kNoTeacher},
    {"teacher_model_init_kwargs", "", kNoTeacher},
    {"teacher_model_revision", "", kNoTeacher},
    {"teacher_tokenizer_name_or_path", "", kNoTeacher},
    {"rl", "recipe",
     "pairs of answers are learnt by the recipe dpo (strata dpo) or, without a reference, by orpo "
     "and cpo (also SimPO), rated ones by kto (strata kto)"},
    {"accelerate_config", "config_file",
     "name a file: strata launch --config_file FILE before the recipe (for TRL's zero3 the file "
     "zero3.yaml)"},
    {"gamma_beta_ratio", "simpo_gamma", "use simpo_gamma, which is gamma_beta_ratio times beta"},
    {"max_prompt_length", "max_length"},
    {"rpo_alpha", "loss_weights",
     "add the loss of the chosen answers: loss_type sigmoid,sft with loss_weights 1,ALPHA"},
    {"response_template", "assistant_only_loss", kAnswers},
    {"instruction_template", "assistant_only_loss", kAnswers},
    // run_clm.py and its like
    {"token", "", kHubToken},
    {"use_auth_token", "", kHubToken},
    {"use_fast_tokenizer", "", kSelfChosen},
    {"do_lower_case", "", kSelfChosen},
    {"keep_linebreaks", "",
     "remove it: each line of a text file is a row, which ends with the end-of-sequence token"},
    {"line_by_line", "", "remove it: each line of a text file is a row, packing joins them"},
    {"config_overrides", "config_name",
     "write the values into a config.json and name that in config_name"},
    {"validation_split_percentage", "splits",
     "take slices of dataset_name: splits \"train[5%:],train[:5%]\""},
    // torchrun's and DeepSpeed's launchers
    {"nproc_per_node", "num_processes",
     "use num_processes, which counts the ranks of all machines together"},
    {"include", "gpu_ids", "use gpu_ids 0,1 (numbers of this machine's devices)"},
    {"exclude", "gpu_ids", "name the others in gpu_ids (numbers of this machine's devices)"},
    {"hostfile", "", kMachines},
    {"rdzv_endpoint", "main_process_ip", kMeeting},
    {"rdzv_id", "", "remove it: machines meet at main_process_ip and main_process_port"},
    {"standalone", "", "remove it: one machine needs no meeting point"},
    // adapter_config.json, which PEFT writes
    {"revision", "model_revision"},
    {"base_model_name_or_path", "model_name_or_path"},
    {"task_type", "lora_task_type"},
    {"init_ia3_weights", "", "remove it: (IA)^3 starts from ones"},
    {"inference_mode", "", kAdapterFile},
    {"peft_version", "", kAdapterFile},
    {"auto_mapping", "", kAdapterFile},
    {"megatron_config", "", kNoMegatron},
    {"megatron_core", "", kNoMegatron},
    // scripts of many people
    {"use_lora", "use_peft"},
    {"use_qlora", "use_peft", "use use_peft and load_in_4bit"},
    {"model", "model_name_or_path"},
    {"model_path", "model_name_or_path"},
    {"tokenizer", "tokenizer_name"},
    {"dataset", "dataset_name"},
    {"data_path", "dataset_name"},
    {"batch_size", "per_device_train_batch_size"},
    {"train_batch_size", "per_device_train_batch_size"},
    {"eval_batch_size", "per_device_eval_batch_size"},
    {"lr", "learning_rate"},
    {"epochs", "num_train_epochs"},
    {"num_epochs", "num_train_epochs"},
    {"system_prompt", "", kSystem},
    {"device_map", "", "remove it: num_processes and the fsdp settings place the model"},
    // axolotl
    {"base_model", "model_name_or_path"},
    {"base_model_config", "", kSelfChosen},
    {"model_type", "", kSelfChosen},
    {"tokenizer_type", "", kSelfChosen},
    {"processor_type", "", kSelfChosen},
    {"tokenizer_config", "tokenizer_name"},
    {"special_tokens", "pad_token", "use eos_token and pad_token"},
    {"sequence_len", "max_length"},
    {"sample_packing", "packing"},
    {"eval_sample_packing", "eval_packing"},
    {"pad_to_sequence_len", "", "remove it: rows are not padded"},
    {"micro_batch_size", "per_device_train_batch_size"},
    {"optimizer", "optim"},
    {"unfrozen_parameters", "",
     "no setting trains only a part of the base; lora_modules_to_save fully trains modules in "
     "addition to an adapter"},
    {"lr_scheduler", "lr_scheduler_type"},
    {"rl_beta", "beta"},
    {"orpo_alpha", "beta"},
    {"kto_desirable_weight", "desirable_weight"},
    {"kto_undesirable_weight", "undesirable_weight"},
    {"dpo_use_weighting", "use_weighting"},
    {"adapter", "use_peft", "lora: use_peft true; qlora: load_in_4bit true, too"},
    {"lora_model_dir", "adapter_name_or_path"},
    {"lora_target_linear", "lora_target_modules", "use lora_target_modules all-linear"},
    {"peft_use_dora", "use_dora"},
    {"peft_use_rslora", "use_rslora"},
    {"val_set_size", "splits", kSlices},
    {"test_datasets", "splits",
     "put the files of both splits into one folder, or name the slices in splits"},
    {"train_on_inputs", "completion_only_loss",
     "false: completion_only_loss or assistant_only_loss; true: neither"},
    {"evals_per_epoch", "eval_steps", "use eval_steps, a fraction of the run below 1"},
    {"saves_per_epoch", "save_steps", "use save_steps, a fraction of the run below 1"},
    {"dataset_prepared_path", "", "remove it: tokenized rows are kept in HF_HOME/strata"},
    {"dataset_processes", "dataset_num_proc"},
    {"flash_attention", "", kKernels},
    {"xformers_attention", "", kKernels},
    {"sdp_attention", "", kKernels},
    {"flash_attn", "", kKernels},
    {"plugins", "", kKernels},
    {"liger_rope", "", kKernels},
    {"liger_rms_norm", "", kKernels},
    {"liger_glu_activation", "", kKernels},
    {"liger_fused_linear_cross_entropy", "", kKernels},
    {"wandb_project", "", kMetrics},
    {"wandb_entity", "", kMetrics},
    {"wandb_watch", "", kMetrics},
    {"wandb_name", "", kMetrics},
    {"wandb_log_model", "", kMetrics},
    {"mlflow_experiment_name", "", kMetrics},
    {"strict", "", "remove it: unknown keys are always errors"},
    // LLaMA-Factory
    {"stage", "recipe",
     "remove it: the command's name says it (strata sft, dpo, orpo, cpo, kto or, for rm, reward)"},
    {"pref_beta", "beta"},
    {"pref_loss", "loss_type"},
    {"pref_ftx", "loss_weights",
     "add the loss of the chosen answers: loss_type sigmoid,sft with loss_weights 1,FTX; in the "
     "recipe cpo it is cpo_alpha"},
    {"dpo_label_smoothing", "label_smoothing"},
    {"kto_chosen_weight", "desirable_weight"},
    {"kto_rejected_weight", "undesirable_weight"},
    {"finetuning_type", "use_peft", "lora: use_peft true; full: leave use_peft out"},
    {"lora_target", "lora_target_modules", "use lora_target_modules (all: all-linear)"},
    {"additional_target", "lora_modules_to_save"},
    {"quantization_bit", "load_in_4bit", "4: load_in_4bit true; 8: load_in_8bit true"},
    {"dataset_dir", "dataset_name", "name the files themselves in dataset_name"},
    {"eval_dataset", "splits", "put the files of both splits into one folder; see splits"},
    {"val_size", "splits", kSlices},
    {"max_samples", "splits", "take a slice: splits \"train[:1000],test\""},
    {"template", "chat_template_format",
     "the tokenizer's own is the default; another: chat_template_path or chat_template_format"},
    {"cutoff_len", "max_length"},
    {"default_system", "", kSystem},
    {"train_on_prompt", "completion_only_loss", "use completion_only_loss false"},
    {"mask_history", "", "mark earlier answers in the data with \"weight\": 0"},
    {"plot_loss", "", "remove it: report.html in output_dir has the curve"},
    {"pure_bf16", "", "weights that train are fp32 here; for computing in bf16 set bf16"},
};

}  // namespace

std::span<const ForeignName> foreign_names() { return kNames; }

const ForeignName* find_foreign_name(std::string_view name) {
  const auto found = std::ranges::find(kNames, normalized_name(name), &ForeignName::name);
  return found == std::end(kNames) ? nullptr : &*found;
}

std::string foreign_advice(std::string_view name) {
  const ForeignName* found = find_foreign_name(name);
  if (found == nullptr) return "";
  return found->advice.empty() ? fmt::format("use {}", found->setting) : std::string(found->advice);
}

// A rename that is one slip away.
static const ForeignName* near_foreign_name(std::string_view name, bool (*accept)(const Setting&)) {
  const std::string wanted = normalized_name(name);
  for (const ForeignName& foreign : kNames) {
    const bool is_rename = !foreign.setting.empty() && foreign.advice.empty();
    if (is_rename && edit_distance(wanted, foreign.name) <= 1 && foreign.name.size() > 4 &&
        accept(get_setting(foreign.setting))) {
      return &foreign;
    }
  }
  return nullptr;
}

std::string unknown_advice(std::string_view name, bool (*accept)(const Setting&),
                           std::string_view dashes) {
  if (std::string advice = foreign_advice(name); !advice.empty()) return advice;
  const auto near = closest_setting(name, accept);
  const ForeignName* foreign = near_foreign_name(name, accept);
  const bool is_foreign = foreign && (!near || edit_distance(normalized_name(name), *near) > 1);
  if (is_foreign) return fmt::format("did you mean {}{}?", dashes, foreign->setting);
  return near ? fmt::format("did you mean {}{}?", dashes, *near) : "";
}

}  // namespace strata::config
