// The questions in accelerate's order (commands/config/cluster.py of accelerate 1.15).
#include "strata/cli/config_questions.h"

namespace strata::cli {
namespace {

using Options = std::vector<std::string>;

class Questionnaire {
 public:
  explicit Questionnaire(Prompt& prompt) : prompt_(prompt) {}

  Json ask() {
    ask_environment();
    ask_machine_type();
    if (is_distributed()) ask_machines();
    ask_cpu();
    ask_compiler();
    if (type_ == "MULTI_GPU" || type_ == "NO") ask_deepspeed();
    if (type_ == "MULTI_GPU") ask_fsdp();
    if (file_["fsdp_config"].value("fsdp_version", 1) == 2) ask_parallelism();
    if (type_ == "MULTI_GPU")
      refuse_yes("Do you want to use Megatron-LM?", "use FSDP or DeepSpeed");
    ask_processes();
    ask_devices();
    ask_precision();
    file_["distributed_type"] = type_;
    return file_;
  }

 private:
  bool is_distributed() const { return type_ != "NO"; }
  bool on_cpu() const { return file_["use_cpu"] == true; }

  // A feature that accelerate has and Strata has not.
  void refuse_yes(const std::string& question, const std::string& advice) {
    while (prompt_.yes_no(question, false)) prompt_.say("not supported here; " + advice);
  }

  // The chosen text.
  std::string pick(const std::string& question, const Options& options, size_t fallback = 0) {
    return options[prompt_.choose(question, options, fallback)];
  }

  void ask_environment() {
    const Options options = {"This machine", "AWS (Amazon SageMaker)"};
    while (prompt_.choose("In which environment do you compute?", options) != 0) {
      prompt_.say("not supported here; start strata launch on the machines themselves");
    }
  }

  void ask_machine_type() {
    const Options options = {"No distributed training",
                             "multi-CPU",
                             "multi-XPU",
                             "multi-HPU",
                             "multi-GPU",
                             "multi-NPU",
                             "multi-MLU",
                             "multi-SDAA",
                             "multi-MUSA",
                             "multi-NEURON",
                             "TPU"};
    while (type_.empty()) {
      switch (prompt_.choose("Which kind of machine do you use?", options)) {
        case 0:
          type_ = "NO";
          break;
        case 1:
          type_ = "MULTI_CPU";
          break;
        case 4:
          type_ = "MULTI_GPU";
          break;
        default:
          prompt_.say("not supported here; choose CPUs or GPUs");
      }
    }
  }

  void ask_machines() {
    const int64_t machines =
        prompt_.integer("How many machines (more than 1: a run of several nodes)?", 1, 1);
    file_["num_machines"] = machines;
    if (machines > 1) {
      Options ranks;
      for (int64_t i = 0; i < machines; ++i) ranks.push_back(std::to_string(i));
      file_["machine_rank"] = prompt_.choose("What is the number of this machine (from 0)?", ranks);
      file_["main_process_ip"] = prompt_.text("IP address of the machine with the main process?");
      file_["main_process_port"] =
          prompt_.integer("Port on which the machines meet?", std::nullopt, 1, 65535);
      const bool same_network = prompt_.yes_no(
          "Are all machines in one local network (no: in a cloud, or on separate networks)?", true);
      file_["same_network"] = same_network;
      if (!same_network) {
        file_["rdzv_backend"] = prompt_.text("Which rendezvous (static, c10d)?", "static");
      }
    }
    file_["debug"] = prompt_.yes_no(
        "Should distributed operations be checked for errors while they run (slower)?", false);
  }

  void ask_cpu() {
    if (type_ == "NO") {
      file_["use_cpu"] = prompt_.yes_no("Compute on the CPU only, even if there is a GPU?", false);
      return;
    }
    file_["use_cpu"] = type_ == "MULTI_CPU";
    if (type_ == "MULTI_CPU") {
      refuse_yes("Should mpirun start the processes?",
                 "start the ranks with `mpirun -n N strata sft ...` itself");
    }
  }

  void ask_compiler() {
    refuse_yes("Should torch dynamo compile your script?", "nothing is compiled at run time");
  }

  void ask_deepspeed() {
    if (!prompt_.yes_no("Do you want to use DeepSpeed?", false)) return;
    type_ = "DEEPSPEED";
    Json& section = file_["deepspeed_config"];
    uses_deepspeed_file_ = prompt_.yes_no("Is there a JSON file with a DeepSpeed config?", false);
    if (uses_deepspeed_file_) {
      section["deepspeed_config_file"] = prompt_.text("Path of that file?");
    } else {
      ask_zero(section);
    }
    section["zero3_init_flag"] =
        prompt_.yes_no("Should ZeRO stage 3 build huge models in pieces (zero.Init)?", false);
    refuse_yes("Do you want to train mixture-of-experts layers?", "leave it at no");
    if (file_["num_machines"] > 1) {
      section["deepspeed_multinode_launcher"] =
          pick("Which launcher starts the machines (here: strata launch on each, standard)?",
               {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"});
      if (section["deepspeed_multinode_launcher"] != "standard") {
        section["deepspeed_hostfile"] =
            prompt_.text("Path of the hostfile (`name slots=N` lines)?");
        ask_filter(section, "exclusion");
        ask_filter(section, "inclusion");
      }
    }
  }

  void ask_filter(Json& section, const std::string& kind) {
    if (!prompt_.yes_no("Is there an " + kind + " filter for the hosts?", false)) return;
    section["deepspeed_" + kind + "_filter"] = prompt_.text("The " + kind + " filter?");
  }

  void ask_zero(Json& section) {
    const size_t stage = prompt_.choose("Which stage of ZeRO?", {"0", "1", "2", "3"}, 2);
    section["zero_stage"] = stage;
    if (stage >= 2) {
      const Options devices = {"none", "cpu", "nvme"};
      const std::string optimizer = pick("Where is the optimizer state kept?", devices);
      const std::string parameters = pick("Where are the parameters kept?", devices);
      section["offload_optimizer_device"] = optimizer;
      section["offload_param_device"] = parameters;
      if (parameters == "nvme") {
        section["offload_param_nvme_path"] = prompt_.text("NVMe folder for parameters?", "/nvme");
      }
      if (optimizer == "nvme") {
        section["offload_optimizer_nvme_path"] =
            prompt_.text("NVMe folder for the optimizer state?", "/nvme");
      }
    }
    section["gradient_accumulation_steps"] =
        prompt_.integer("How many gradient accumulation steps does your command have?", 1, 1);
    if (prompt_.yes_no("Do you want to clip gradients?", false)) {
      section["gradient_clipping"] = prompt_.number("Clip their norm at?", 1.0, 0);
    }
    if (stage == 3) {
      section["zero3_save_16bit_model"] =
          prompt_.yes_no("Should stage 3 save the weights in 16 bits?", false);
    }
  }

  void ask_fsdp() {
    if (!prompt_.yes_no("Do you want to use FullyShardedDataParallel (FSDP)?", false)) return;
    type_ = "FSDP";
    Json& section = file_["fsdp_config"];
    const bool is_first = prompt_.choose("Which version of FSDP?", {"1", "2"}, 1) == 0;
    section["fsdp_version"] = is_first ? 1 : 2;
    if (is_first) {
      section["fsdp_reshard_after_forward"] =
          pick("Which sharding strategy?",
               {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
    } else {
      section["fsdp_reshard_after_forward"] =
          prompt_.yes_no("Should parameters be sharded again after the forward pass?", true);
    }
    section["fsdp_offload_params"] =
        prompt_.yes_no("Should parameters and gradients be kept in host memory?", false);
    ask_wrapping(section);
    if (is_first) {
      section["fsdp_backward_prefetch"] = pick("Which prefetch in the backward pass?",
                                               {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"});
    }
    ask_fsdp_state(section, is_first);
  }

  void ask_wrapping(Json& section) {
    const std::string policy =
        pick("What is a unit of FSDP?", {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"});
    section["fsdp_auto_wrap_policy"] = policy;
    if (policy == "SIZE_BASED_WRAP") {
      section["fsdp_min_num_params"] = prompt_.integer(
          "How many parameters must a unit have at least?", 100000000, 0, INT64_MAX);
    } else if (policy == "TRANSFORMER_BASED_WRAP" &&
               !prompt_.yes_no("Are the model's own blocks (`_no_split_modules`) the units?",
                               false)) {
      section["fsdp_transformer_layer_cls_to_wrap"] = prompt_.text(
          "Class names of the units, separated by commas (such as LlamaDecoderLayer or T5Block)?");
    }
  }

  void ask_fsdp_state(Json& section, bool is_first) {
    section["fsdp_state_dict_type"] =
        pick("Which form should saved states have?",
             is_first ? Options{"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}
                      : Options{"SHARDED_STATE_DICT", "FULL_STATE_DICT"});
    if (is_first) {
      section["fsdp_forward_prefetch"] =
          prompt_.yes_no("Should the next unit be gathered in advance in the forward pass?", false);
      section["fsdp_use_orig_params"] = prompt_.yes_no("Keep original parameters?", true);
    }
    const bool loads_on_one =
        prompt_.yes_no("Should loading use little host memory (one copy per machine)?", true);
    section["fsdp_cpu_ram_efficient_loading"] = loads_on_one;
    if (is_first) {
      section["fsdp_sync_module_states"] =
          loads_on_one ||
          prompt_.yes_no("Should rank 0 hand its parameters to the others at the start?", true);
    }
    section["fsdp_activation_checkpointing"] =
        prompt_.yes_no("Should activations be recomputed in the backward pass?", false);
  }

  void ask_parallelism() {
    if (!prompt_.yes_no("Do you want to use the parallelism config?", false)) return;
    Json& section = file_["parallelism_config"];
    const std::string prefix = "parallelism_config_";
    section[prefix + "dp_replicate_size"] =
        prompt_.integer("How many copies of the model (data parallel)?", 1, 1);
    section[prefix + "dp_shard_size"] =
        prompt_.integer("Over how many ranks is each copy sharded?", 1, 1);
    section[prefix + "tp_size"] = prompt_.integer("Size of tensor parallelism (here: 1)?", 1, 1, 1);
    const int64_t sharers =
        prompt_.integer("How many ranks share the tokens of a row (context parallelism)?", 1, 1);
    section[prefix + "cp_size"] = sharers;
    if (sharers == 1) return;
    const std::vector<std::string> ways{"allgather", "alltoall"};
    section[prefix + "cp_comm_strategy"] =
        ways[prompt_.choose("How do they exchange them (for accelerate; one way here)?", ways)];
  }

  void ask_processes() {
    if (!is_distributed()) return;
    const char* noun = type_ == "MULTI_CPU" ? "processes" : "GPUs";
    while (true) {
      const int64_t count =
          prompt_.integer(std::string("How many ") + noun + " should train?", 1, 1);
      file_["num_processes"] = count;
      if (type_ != "MULTI_GPU" || count > 1 || file_["num_machines"] > 1) return;
      prompt_.say("expected 2 or more GPUs for multi-GPU on one machine");
    }
  }

  void ask_devices() {
    if (on_cpu() || (type_ != "NO" && type_ != "MULTI_GPU")) return;
    file_["gpu_ids"] = prompt_.text("Which GPUs of this machine (such as 0,1)?", "all");
    file_["enable_cpu_affinity"] =
        prompt_.yes_no("Should processes stay near their GPU's memory (NUMA)?", false);
  }

  void ask_precision() {
    if (uses_deepspeed_file_) return;
    const Options options = {"no", "fp16", "bf16", "fp8"};
    while (true) {
      const std::string precision = pick("Which mixed precision?", options);
      file_["mixed_precision"] = precision;
      if (precision != "fp8") return;
      prompt_.say("fp8 is not supported here");
    }
  }

  Prompt& prompt_;
  std::string type_;
  bool uses_deepspeed_file_ = false;
  Json file_ = {{"compute_environment", "LOCAL_MACHINE"},
                {"debug", false},
                {"deepspeed_config", Json::object()},
                {"downcast_bf16", "no"},
                {"enable_cpu_affinity", false},
                {"fsdp_config", Json::object()},
                {"machine_rank", 0},
                {"main_training_function", "main"},
                {"num_machines", 1},
                {"num_processes", 1},
                {"rdzv_backend", "static"},
                {"same_network", true},
                {"tpu_env", Json::array()},
                {"tpu_use_cluster", false},
                {"tpu_use_sudo", false},
                {"use_cpu", false}};
};

}  // namespace

Json ask_configuration(Prompt& prompt) { return Questionnaire(prompt).ask(); }

}  // namespace strata::cli
