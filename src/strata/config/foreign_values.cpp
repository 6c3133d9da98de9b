#include "strata/config/foreign_values.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "strata/config/field_text.h"

namespace strata::config {
namespace {

constexpr std::string_view kDecay =
    "use warmup_stable_decay, with lr_scheduler_kwargs {\"num_decay_steps\": N}";
constexpr std::string_view kWarmup = "use {} with warmup_steps";
constexpr std::string_view kBestPrecision =
    "use true; a processor without bf16 computes in fp32, and the run says so";
constexpr std::string_view kNoSuchRule =
    "it is not supported in this version; adamw_torch_fused is the one that most guides use";

constexpr ForeignValue kValues[] = {
    {"lr_scheduler_type", "wsd", "warmup_stable_decay", kDecay},
    {"lr_scheduler_type", "wsd_schedule", "warmup_stable_decay", kDecay},
    {"lr_scheduler_type", "trapezoidal", "warmup_stable_decay", kDecay},
    {"lr_scheduler_type", "constant_with_decay", "warmup_stable_decay", kDecay},
    {"lr_scheduler_type", "constant_with_cooldown", "warmup_stable_decay", kDecay},
    {"lr_scheduler_type", "linear_with_warmup", "linear", kWarmup},
    {"lr_scheduler_type", "linear_warmup", "linear", kWarmup},
    {"lr_scheduler_type", "cosine_with_warmup", "cosine", kWarmup},
    {"lr_scheduler_type", "cosine_warmup", "cosine", kWarmup},
    {"lr_scheduler_type", "linear_warmup_cosine_decay", "cosine", kWarmup},
    {"lr_scheduler_type", "plateau", "reduce_lr_on_plateau"},
    {"lr_scheduler_type", "inverse_square_root", "inverse_sqrt"},
    {"lr_scheduler_type", "noam", "inverse_sqrt"},
    {"lr_scheduler_type", "none", "constant"},
    {"lr_scheduler_type", "null", "constant"},
    {"optim", "paged_lion", "paged_lion_32bit"},
    {"optim", "paged_adam", "paged_adamw_32bit"},
    {"optim", "adamw_32bit", "adamw_torch"},
    {"optim", "adamw_bnb", "adamw_bnb_8bit"},
    {"optim", "adam_8bit", "adamw_bnb_8bit"},
    {"optim", "adam8bit", "adamw_bnb_8bit"},
    {"optim", "adamw8bit", "adamw_bnb_8bit"},
    {"optim", "paged_adamw8bit", "paged_adamw_8bit"},
    {"optim", "adamw_torch_8bit", "adamw_bnb_8bit"},
    {"optim", "ao_adamw_8bit", "adamw_bnb_8bit"},
    {"optim", "fusedadam", "adamw_torch_fused"},
    {"optim", "fused_adam", "adamw_torch_fused"},
    {"optim", "fused_adamw", "adamw_torch_fused"},
    {"optim", "adamw_fused", "adamw_torch_fused"},
    {"optim", "adamw_apex_fused", "adamw_torch_fused"},
    {"optim", "adamw_torch_xla", "adamw_torch_fused"},
    {"optim", "adamw_torch_npu_fused", "adamw_torch_fused"},
    {"optim", "cpu_adam", "adamw_torch_fused"},
    {"optim", "deepspeedcpuadam", "adamw_torch_fused"},
    {"optim", "lion_pytorch", "lion_32bit"},
    {"optim", "sgd_momentum", "sgd", "use sgd with optim_args momentum=0.9"},
    {"optim", "muon", "", kNoSuchRule},
    {"optim", "came", "", kNoSuchRule},
    {"optim", "came_pytorch", "", kNoSuchRule},
    {"optim", "adam_mini", "", kNoSuchRule},
    {"optim", "sophia", "", kNoSuchRule},
    {"optim", "prodigy", "", kNoSuchRule},
    {"optim", "soap", "", kNoSuchRule},
    {"optim", "adopt_adamw", "", kNoSuchRule},
    {"bf16", "auto", "true", kBestPrecision},
    {"bf16", "full", "true", "use true"},
    {"fp16", "auto", "", "use true for fp16, or leave it out"},
    {"mixed_precision", "fp32", "no"},
    {"mixed_precision", "none", "no"},
    {"mixed_precision", "null", "no"},
    {"mixed_precision", "auto", "bf16"},
    {"mixed_precision", "bfloat16", "bf16"},
    {"mixed_precision", "float16", "fp16"},
    {"dtype", "half", "float16"},
    {"dtype", "float", "float32"},
    {"dtype", "full", "float32"},
    {"dtype", "single", "float32"},
    {"dtype", "brain", "bfloat16"},
    {"gradient_checkpointing", "unsloth", "true"},
    {"gradient_checkpointing", "auto", "",
     "use true with gradient_checkpointing_mode auto, which takes what memory allows"},
    {"gradient_checkpointing", "offload", "true", "use true with activation_offloading true"},
    {"gradient_checkpointing", "selective", "true",
     "use true with gradient_checkpointing_mode selective"},
    {"gradient_checkpointing", "full", "true"},
    {"activation_checkpointing", "unsloth", "full"},
    {"eval_strategy", "none", "no"},
    {"eval_strategy", "null", "no"},
    {"eval_strategy", "never", "no"},
    {"save_strategy", "none", "no"},
    {"save_strategy", "null", "no"},
    {"save_strategy", "never", "no"},
    {"logging_strategy", "none", "no"},
    {"logging_strategy", "null", "no"},
    {"max_grad_norm", "none", "0", "use 0, which turns it off"},
    {"max_grad_norm", "null", "0", "use 0, which turns it off"},
    {"packing", "bfd", "true", "use true with packing_strategy bfd"},
    {"packing", "bfd_split", "true", "use true with packing_strategy bfd_split"},
    {"packing", "wrapped", "true", "use true with packing_strategy wrapped"},
    {"lora_bias", "none", "false", "use false, or leave it out; bias none is another setting"},
    {"lora_bias", "all", "", "use bias all to train biases"},
    {"lora_bias", "lora_only", "", "use bias lora_only to train biases"},
    {"bias", "lora", "lora_only"},
    {"bias", "true", "all"},
    {"bias", "false", "none"},
    {"peft_type", "dora", "LORA", "use LORA with use_dora true"},
    {"peft_type", "qlora", "LORA", "use LORA with load_in_4bit true"},
    {"peft_type", "rslora", "LORA", "use LORA with use_rslora true"},
    {"peft_type", "(ia)3", "IA3"},
    {"peft_type", "(ia)^3", "IA3"},
    {"peft_type", "adalora", "", "it is not supported in this version; LORA is the nearest"},
    {"peft_type", "p_tuning", "",
     "it is not supported in this version; PROMPT_TUNING is the nearest"},
};

std::string folded(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(c));
  });
  return result;
}

// Of Python's enums as they print themselves: "SchedulerType.COSINE" is cosine.
std::string choice_of_enum(const Setting& setting, std::string_view value) {
  const size_t dot = value.rfind('.');
  if (dot == std::string_view::npos) return "";
  const std::string wanted = folded(value.substr(dot + 1));
  for (const std::string_view choice : choices_of(setting)) {
    if (folded(choice) == wanted) return fmt::format("use {}", choice);
  }
  return "";
}

}  // namespace

std::span<const ForeignValue> foreign_values() { return kValues; }

std::string foreign_value_advice(const Setting& setting, std::string_view value) {
  const std::string wanted = folded(value);
  for (const ForeignValue& known : kValues) {
    if (known.setting != setting.name || known.value != wanted) continue;
    if (known.advice.empty()) return fmt::format("use {}", known.use);
    return known.advice == kWarmup ? fmt::format(kWarmup, known.use) : std::string(known.advice);
  }
  return choice_of_enum(setting, value);
}

}  // namespace strata::config
