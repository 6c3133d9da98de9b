// Records of the settings that `strata plan` has beside those of a run.
#include "strata/config/settings/table.h"

namespace strata::config {

std::span<const Setting> plan_settings_table() {
  static const std::vector<Setting> table = {
      {.name = "world_size",
       .field = STRATA_FIELD(plan.world_size),
       .range = {.min = 0},
       .help = "ranks on all machines together; default: num_processes, or 1",
       .group = "plan"},
      {.name = "nodes",
       .field = STRATA_FIELD(plan.nodes),
       .range = {.min = 0},
       .help = "machines that the ranks are on; default: num_machines",
       .group = "plan"},
      {.name = "device",
       .field = STRATA_FIELD(plan.device),
       .help = "what computes: cpu, like this machine's; cuda: a GPU with bf16; auto: cuda if "
               "device_memory is given without use_cpu, else cpu",
       .group = "plan"},
      {.name = "device_memory",
       .field = STRATA_FIELD(plan.device_memory),
       .help = "memory that one rank may use, such as 80GB or 24GiB; the plan looks for settings "
               "that fit",
       .group = "plan"},
      {.name = "schedule",
       .field = STRATA_FIELD(plan.show_schedule),
       .help = "print every step of a micro-batch with the memory in use",
       .group = "plan"},
      {.name = "deepspeed_estimate",
       .field = STRATA_FIELD(plan.deepspeed_estimate),
       .help = "print what DeepSpeed's estimators of ZeRO-2 and ZeRO-3 say for the same model",
       .group = "plan"},
      {.name = "dtypes",
       .field = STRATA_FIELD(plan.dtypes),
       .help = "print the table of accelerate estimate-memory for these types of weights: float32, "
               "float16, int8, int4",
       .group = "plan"},
      {.name = "library_name",
       .field = STRATA_FIELD(plan.library_name),
       .choices = {"transformers"},
       .help = "library whose models are read; timm is not supported",
       .group = "plan"}};
  return table;
}

}  // namespace strata::config
