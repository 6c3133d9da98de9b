// Records of sharding, precision and launch, and of the top-level keys of accelerate's files.
#include "strata/config/settings_table.h"

namespace strata::config {
namespace {

constexpr std::string_view kAlways = "always so here";

std::vector<Setting> precision_settings() {
  return {
      {.name = "bf16",
       .field = STRATA_FIELD(shard.bf16),
       .help = "compute in bfloat16 (CPUs without it compute in float32)",
       .peer = "SFTConfig"},
      {.name = "fp16",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"false", "none"},
       .help = "use bf16",
       .peer = "TrainingArguments",
       .in_accelerate_file = true},
      {.name = "mixed_precision",
       .kind = Kind::kTranslated,
       .choices = {"no", "bf16"},
       .synonyms = {{"false", "no"}, {"off", "no"}},
       .refused = {"fp16", "fp8"},
       .help = "no: bf16 false; bf16: bf16 true",
       .peer = "accelerate launch",
       .scope = Scope::kBoth,
       .in_accelerate_file = true},
      {.name = "gradient_checkpointing",
       .aliases = {"activation_checkpointing", "use_gradient_checkpointing"},
       .field = STRATA_FIELD(shard.gradient_checkpointing),
       .help = "recompute each block in the backward pass instead of keeping its activations",
       .peer = "SFTConfig"},
      {.name = "ddp_timeout",
       .field = STRATA_FIELD(shard.ddp_timeout_s),
       .range = {.min = 1},
       .help = "seconds that a rank waits for the others",
       .peer = "TrainingArguments"},
      {.name = "use_cpu",
       .aliases = {"cpu", "no_cuda"},
       .field = STRATA_FIELD(launch.cpu),
       .help = "run on the CPU even where there are devices",
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
       .choices = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"},
       .synonyms = {{"1", "FULL_SHARD"},
                    {"2", "SHARD_GRAD_OP"},
                    {"3", "NO_SHARD"},
                    {"4", "HYBRID_SHARD"},
                    {"5", "HYBRID_SHARD_ZERO2"}},
       .refused = {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"},
       .help = "what the ranks share: parameters, gradients and optimizer state; the latter two; "
               "nothing"},
      {.name = "fsdp_backward_prefetch",
       .aliases = {"backward_prefetch", "fsdp_backward_prefetch_policy"},
       .field = STRATA_FIELD(shard.backward_prefetch),
       .choices = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"},
       .synonyms = {{"1", "BACKWARD_PRE"}, {"2", "BACKWARD_POST"}},
       .help = "gather the next unit before or after the gradients of this one, or not ahead"},
      {.name = "fsdp_forward_prefetch",
       .aliases = {"forward_prefetch"},
       .field = STRATA_FIELD(shard.forward_prefetch),
       .help = "gather the next unit ahead in the forward pass"},
      {.name = "fsdp",
       .kind = Kind::kTranslated,
       .help = "full_shard, shard_grad_op or no_shard; auto_wrap beside it has no effect",
       .peer = "TrainingArguments"},
      {.name = "fsdp_config",
       .kind = Kind::kSource,
       .help = "YAML or JSON file, or a folder with fsdp_config.json or .yaml, of fsdp_ settings",
       .peer = "TrainingArguments"},
      {.name = "fsdp_version",
       .kind = Kind::kUnbound,
       .harmless = {"1", "2"},
       .help = "the keys of both versions are understood"},
      {.name = "fsdp_reshard_after_forward",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"},
       .refused = {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"},
       .help = "true: FULL_SHARD; false: SHARD_GRAD_OP; or the name of a strategy"},
      {.name = "fsdp_activation_checkpointing",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help = "true: gradient_checkpointing; false asks for nothing"},
      {.name = "fsdp_offload_params",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"false", "none"},
       .help = "parameters stay on the device"},
      {.name = "fsdp_activation_checkpointing_offload",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"false", "none"},
       .help = "activations stay on the device"},
      {.name = "fsdp_auto_wrap_policy",
       .aliases = {"fsdp_wrap_policy"},
       .kind = Kind::kUnbound,
       .harmless = {"TRANSFORMER_BASED_WRAP", "none", "*"},
       .help = "units are always the model's blocks"},
      {.name = "fsdp_transformer_layer_cls_to_wrap",
       .kind = Kind::kUnbound,
       .harmless = {"none", "*"},
       .help = "units are always the model's blocks"},
      {.name = "fsdp_min_num_params",
       .aliases = {"fsdp_min_num_param", "min_num_param", "min_num_params"},
       .kind = Kind::kUnbound,
       .harmless = {"100000000", "0", "none", "*"},
       .help = "units are always the model's blocks"},
      {.name = "fsdp_state_dict_type",
       .kind = Kind::kUnbound,
       .harmless = {"SHARDED_STATE_DICT", "FULL_STATE_DICT", "none", "*"},
       .help = "checkpoints are always sharded, the result is always a full model or adapter"},
      {.name = "fsdp_use_orig_params",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"true", "false", "none"},
       .help = kAlways},
      {.name = "fsdp_cpu_ram_efficient_loading",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"true", "false", "none"},
       .help = "every rank reads only its own shard"},
      {.name = "fsdp_sync_module_states",
       .kind = Kind::kUnbound,
       .is_switch = true,
       .harmless = {"true", "false", "none"},
       .help = "every rank reads only its own shard"},
      {.name = "fsdp_ignored_modules",
       .kind = Kind::kUnbound,
       .harmless = {"none"},
       .help = "every parameter is sharded"},
  };
}

std::vector<Setting> launch_settings() {
  return {
      {.name = "num_processes",
       .aliases = {"num_gpus"},
       .field = STRATA_FIELD(launch.num_processes),
       .range = {.min = 0},
       .help = "ranks on all machines together; 0: one per device, on CPUs one",
       .in_accelerate_file = true},
      {.name = "num_machines",
       .field = STRATA_FIELD(launch.num_machines),
       .range = {.min = 1},
       .help = "machines of the run, each of which runs this command",
       .in_accelerate_file = true},
      {.name = "machine_rank",
       .field = STRATA_FIELD(launch.machine_rank),
       .range = {.min = 0},
       .help = "number of this machine, from 0",
       .in_accelerate_file = true},
      {.name = "main_process_ip",
       .field = STRATA_FIELD(launch.main_process_ip),
       .help = "address of machine 0",
       .in_accelerate_file = true},
      {.name = "main_process_port",
       .field = STRATA_FIELD(launch.main_process_port),
       .range = {.min = 0, .max = 65535},
       .help = "port on machine 0; 0: a free one (one machine) or 29500",
       .in_accelerate_file = true},
      {.name = "gpu_ids",
       .field = STRATA_FIELD(launch.gpu_ids),
       .synonyms = {{"all", ""}},
       .help = "devices to use, as 0,1; all: every one",
       .in_accelerate_file = true},
      {.name = "num_cpu_threads_per_process",
       .field = STRATA_FIELD(launch.num_cpu_threads_per_process),
       .range = {.min = 0},
       .help = "threads of a rank; 0: OMP_NUM_THREADS, else cores / ranks of this machine"},
      {.name = "log_dir",
       .field = STRATA_FIELD(launch.log_dir),
       .help = "folder for the output of all ranks but the first, one file each",
       .peer = "accelerate launch"},
      {.name = "no_python",
       .field = STRATA_FIELD(launch.no_python),
       .help = "start the named program itself on every rank instead of the recipe"},
      {.name = "multi_gpu",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help = "every rank holds the whole model (NO_SHARD)"},
      {.name = "use_fsdp",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help = "shard by the fsdp_ settings, whatever the file's distributed_type"},
      {.name = "distributed_type",
       .kind = Kind::kTranslated,
       .choices = {"NO", "MULTI_CPU", "MULTI_GPU", "FSDP"},
       .synonyms = {{"false", "NO"}},
       .refused = {"DEEPSPEED", "MEGATRON_LM", "XLA", "TPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU",
                   "MULTI_SDAA", "MULTI_MUSA", "MULTI_HPU", "MULTI_NEURON"},
       .help = "FSDP: shard by fsdp_config; others: every rank holds the whole model (NO_SHARD)",
       .in_accelerate_file = true},
  };
}

// Known from accelerate; nothing here depends on them.
Setting inert(std::string_view name, std::vector<std::string_view> harmless, std::string_view help,
              bool in_file = true, bool is_switch = false) {
  return {.name = name,
          .kind = Kind::kUnbound,
          .is_switch = is_switch,
          .harmless = std::move(harmless),
          .help = help,
          .in_accelerate_file = in_file};
}

std::vector<Setting> inert_launch_settings() {
  constexpr std::string_view kOnePerBlock = "not supported; leave it empty";
  constexpr std::string_view kNoCompiler = "nothing is compiled at run time";
  return {
      inert("same_network", {"false", "true"}, "machines meet at main_process_ip", true, true),
      inert("rdzv_backend", {"static"}, "machines meet at main_process_ip"),
      inert("rdzv_conf", {"", "none"}, "machines meet at main_process_ip", false),
      inert("max_restarts", {"0"}, "a failed run ends; resume it with --resume_from_checkpoint",
            false),
      inert("monitor_interval", {"0.1", "*"}, "ranks are watched without polling", false),
      inert("role", {"default", "*"}, "ranks have no roles", false),
      inert("tee", {"0", "none", "*"}, "see log_dir", false),
      inert("quiet", {"false", "*"}, "the launcher prints errors only", false, true),
      inert("module", {"false", "*"}, "a script name stands for the recipe", false, true),
      inert("main_training_function", {"main", "none", "*"}, "the recipe has no such function"),
      inert("enable_cpu_affinity", {"false", "*"}, "the system places the threads", true, true),
      inert("compute_environment", {"LOCAL_MACHINE"}, "use LOCAL_MACHINE"),
      inert("downcast_bf16", {"no", "false", "none", "*"}, "for TPUs only"),
      inert("tpu", {"false"}, "TPUs are not supported", false, true),
      inert("tpu_cluster", {"false"}, "TPUs are not supported", false, true),
      inert("use_deepspeed", {"false"}, "use fsdp settings", false, true),
      inert("use_megatron_lm", {"false"}, "use fsdp settings", false, true),
      inert("use_parallelism_config", {"false"}, "use fsdp settings", false, true),
      inert("mpirun_hostfile", {"none"}, "start the ranks with mpirun itself", false),
      inert("tpu_name", {"none"}, "TPUs are not supported"),
      inert("tpu_zone", {"none"}, "TPUs are not supported"),
      inert("tpu_vm", {"none"}, "TPUs are not supported"),
      inert("tpu_env", {"none"}, "TPUs are not supported"),
      inert("tpu_use_cluster", {"false"}, "TPUs are not supported"),
      inert("tpu_use_sudo", {"false", "*"}, "TPUs are not supported"),
      inert("command_file", {"none"}, "TPUs are not supported"),
      inert("commands", {"none"}, "TPUs are not supported"),
      inert("deepspeed_config", {"none"}, kOnePerBlock),
      inert("megatron_lm_config", {"none"}, kOnePerBlock),
      inert("mpirun_config", {"none"}, kOnePerBlock),
      inert("fp8_config", {"none"}, kOnePerBlock),
      inert("dynamo_backend", {"no", "false", "none", "*"}, kNoCompiler),
      inert("dynamo_mode", {"default", "none", "*"}, kNoCompiler, false),
      inert("dynamo_use_fullgraph", {"false", "*"}, kNoCompiler, false, true),
      inert("dynamo_use_dynamic", {"false", "*"}, kNoCompiler, false, true),
      inert("dynamo_use_regional_compilation", {"false", "*"}, kNoCompiler, false, true),
  };
}

}  // namespace

std::vector<Setting> sharding_and_launch_settings() {
  std::vector<Setting> all;
  auto append = [&](std::string_view group, std::vector<Setting> part) {
    for (Setting& setting : part) {
      setting.group = group;
      if (setting.peer.empty()) setting.peer = "accelerate launch";
      all.push_back(std::move(setting));
    }
  };
  append("precision and memory", precision_settings());
  std::vector<Setting> sharding = fsdp_settings();
  for (Setting& setting : sharding) setting.scope = Scope::kBoth;
  append("sharding", std::move(sharding));
  std::vector<Setting> launch = launch_settings();
  for (Setting& setting : launch) setting.scope = Scope::kLaunch;
  append("launch", std::move(launch));
  return all;
}

std::vector<Setting> accelerate_file_settings() {
  std::vector<Setting> all = inert_launch_settings();
  for (Setting& setting : all) {
    setting.group = "launch";
    setting.peer = "accelerate launch";
    setting.scope = Scope::kLaunch;
  }
  return all;
}

}  // namespace strata::config
