// Oracle: accelerate's documented rules and the files of public guides, with exact errors.
#include "strata/config/resolve.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/config/derived.h"
#include "strata/config/describe.h"
#include "strata/config/flags.h"

namespace strata::config {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Flags = std::vector<std::string>;

RunConfig config_of(const Flags& flags) { return resolve({.flags = flags}).config; }

std::string error_of(const Sources& sources) {
  try {
    resolve(sources);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "no error";
}
std::string error_of(const Flags& flags) { return error_of(Sources{.flags = flags}); }

// Files of one test in a folder of their own.
class SettingsFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("strata_config_test_{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  fs::path folder_;
};

TEST_F(SettingsFiles, PrecedenceIsDefaultsFilesEnvironmentLaunchFlagsFlags) {
  const std::string own = write("run.yaml", "fsdp_sharding_strategy: NO_SHARD\nseed: 1\n");
  struct Row {
    Environment environment;
    Flags launch_flags, flags;
    std::string strategy, source;
  };
  const Environment variable = {{"FSDP_SHARDING_STRATEGY", "2"}};
  const std::vector<Row> table = {
      {{}, {}, {}, "FULL_SHARD", "default"},
      {{}, {}, {"--config", own}, "NO_SHARD", own + ":1"},
      {variable,
       {},
       {"--config", own},
       "SHARD_GRAD_OP",
       "environment variable FSDP_SHARDING_STRATEGY"},
      {variable,
       {"--fsdp_sharding_strategy", "1"},
       {"--config", own},
       "FULL_SHARD",
       "launch --fsdp_sharding_strategy"},
      {variable,
       {"--fsdp_sharding_strategy", "1"},
       {"--config", own, "--sharding_strategy", "no_shard"},
       "NO_SHARD",
       "--sharding_strategy"},
  };
  for (const Row& row : table) {
    const Settings settings = resolve(
        {.flags = row.flags, .launch_flags = row.launch_flags, .environment = row.environment});
    EXPECT_EQ(settings.config.shard.sharding_strategy, row.strategy);
    EXPECT_EQ(settings.source_of("fsdp_sharding_strategy"), row.source);
  }
}

TEST_F(SettingsFiles, OwnYamlTakesEveryKindOfValue) {
  const std::string own = write("run.yaml",
                                "# a comment\n"
                                "packing: yes\n"
                                "bf16: off\n"
                                "eval_strategy: no\n"
                                "eval_steps: null\n"
                                "use_peft: true\n"
                                "lora-target-modules: [q_proj, v_proj]\n"
                                "lr_scheduler_type: cosine_with_restarts\n"
                                "lr_scheduler_kwargs: {num_cycles: 2}\n"
                                "learning_rate: 1e-3\n"
                                "num_processes: 2\n");
  const RunConfig config = config_of({own});
  EXPECT_TRUE(config.data.packing);
  EXPECT_FALSE(config.shard.bf16);
  EXPECT_EQ(config.train.eval_strategy, "no");
  EXPECT_EQ(config.train.eval_steps, std::nullopt);
  EXPECT_THAT(config.lora.target_modules, ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(config.optim.lr_scheduler_kwargs, "{\"num_cycles\": 2}");
  EXPECT_EQ(config.optim.learning_rate, 1e-3);
  EXPECT_EQ(config.launch.num_processes, 2);
}

TEST_F(SettingsFiles, OwnYamlErrorsNameFileAndLine) {
  struct Row {
    std::string text, message;
  };
  const std::vector<Row> table = {
      {"seed: 1\nlearning_rat: 1\n",
       ":2: found the unknown key \"learning_rat\", expected a known setting; did you mean "
       "learning_rate?"},
      {"seed: 1\nseed: 2\n", ":2: found \"seed\" twice"},
      {"max_length: 1\nmax_seq_length: 2\n", ":2: found \"max_seq_length\" beside "},
      {"\n\nseed: one\n", ":3 (seed): found \"one\", expected an integer of at least 0"},
      {"seed: [1, 2]\n", ":1 (seed): found a list (1, 2), expected an integer of at least 0"},
      {"seed: null\n", ":1 (seed): found null, expected an integer of at least 0"},
      {"- 1\n", ":1: found no mapping, expected lines of \"key: value\""},
      {"seed: 1\n\tpacking: x: y\n", ":2:"},
      {"config: other.yaml\n", ":1: found the unknown key \"config\""},
      {"optim: lomo\n",
       ":1 (optim): found \"lomo\", expected one of adamw_torch_fused, adamw_torch, "
       "adamw_bnb_8bit"},
      {"packing: maybe\n", ":1 (packing): found \"maybe\", expected true or false"},
  };
  for (const Row& row : table) {
    const std::string file = write("run.yaml", row.text);
    const std::string message = error_of({"--config", file});
    EXPECT_THAT(message, HasSubstr(file + row.message)) << row.text;
  }
}

TEST_F(SettingsFiles, TwoFilesThatContradictAreNamed) {
  const std::string own = write("run.yaml", "bf16: false\n");
  const std::string fsdp = write("fsdp.yaml", "distributed_type: FSDP\nmixed_precision: bf16\n");
  EXPECT_EQ(error_of({"--config", own, "--config_file", fsdp}),
            "bf16: found false (" + own + ":1) and true (" + fsdp +
                ":2 (mixed_precision)), expected one value; remove one");
  EXPECT_TRUE(config_of({"--config", own, "--config_file", fsdp, "--bf16", "True"}).shard.bf16);
}

constexpr const char* kGuideLora = R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: false
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)";

TEST_F(SettingsFiles, AccelerateFileOfTheLoraGuide) {
  const Settings settings =
      resolve({.launch_flags = {"--config_file", write("fsdp.yaml", kGuideLora)}});
  EXPECT_EQ(settings.config.launch.num_processes, 8);
  EXPECT_EQ(settings.config.shard.sharding_strategy, "FULL_SHARD");
  EXPECT_FALSE(settings.config.shard.forward_prefetch);
  EXPECT_TRUE(settings.config.shard.bf16);
  EXPECT_THAT(settings.warnings, IsEmpty());
}

TEST_F(SettingsFiles, AccelerateFileOfTheQloraGuideOffloads) {
  std::string text = kGuideLora;
  text.replace(text.find("offload_params: false"), 21, "offload_params: true");
  const std::string file = write("fsdp.yaml", text);
  EXPECT_TRUE(resolve({.flags = {"--config_file", file}}).config.shard.offload_params);
}

TEST_F(SettingsFiles, AccelerateFileWithOlderKeysOfTheTrainerGuide) {
  const std::string file = write("fsdp.yaml", R"(compute_environment: LOCAL_MACHINE
distributed_type: FSDP
deepspeed_config: {}
megatron_lm_config: {}
dynamo_backend: 'NO'
gpu_ids: null
command_file: null
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch_policy: BACKWARD_POST
  fsdp_cpu_ram_efficient_loading: true
  fsdp_sharding_strategy: 2
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: BertLayer
  fsdp_use_orig_params: true
mixed_precision: no
num_processes: 2
)");
  const Settings settings = resolve({.launch_flags = {"--config_file", file}});
  EXPECT_EQ(settings.config.shard.sharding_strategy, "SHARD_GRAD_OP");
  EXPECT_EQ(settings.config.shard.backward_prefetch, "BACKWARD_POST");
  EXPECT_FALSE(settings.config.shard.bf16);
  EXPECT_EQ(settings.source_of("bf16"), file + ":17 (mixed_precision)");
  EXPECT_EQ(settings.config.shard.layer_classes, std::vector<std::string>{"BertLayer"});
  EXPECT_THAT(settings.warnings, IsEmpty());
}

TEST_F(SettingsFiles, FullFineTuningGuideFlagsWinOverTheFile) {
  const std::string file = write("fsdp.yaml", kGuideLora);
  const Settings settings =
      resolve({.flags = {"--model_name",
                         "meta-llama/Llama-2-70b-chat-hf",
                         "--dataset_name",
                         "d",
                         "--max_seq_len",
                         "2048",
                         "--max_steps",
                         "500",
                         "--logging_steps",
                         "25",
                         "--eval_steps",
                         "100",
                         "--save_steps",
                         "250",
                         "--bf16",
                         "True",
                         "--packing",
                         "True",
                         "--dataset_text_field",
                         "content",
                         "--use_gradient_checkpointing",
                         "True",
                         "--learning_rate",
                         "5e-5",
                         "--lr_scheduler_type",
                         "cosine",
                         "--warmup_ratio",
                         "0.03",
                         "--use_flash_attn",
                         "True"},
               .launch_flags = {"--config_file", file, "--main_process_ip", "10.0.0.1",
                                "--main_process_port", "29500", "--machine_rank", "1",
                                "--num_processes", "16", "--num_machines", "2"}});
  EXPECT_EQ(settings.config.launch.num_processes, 16);
  EXPECT_EQ(settings.config.launch.machine_rank, 1);
  EXPECT_EQ(settings.config.launch.main_process_ip, "10.0.0.1");
  EXPECT_EQ(settings.config.data.max_length, 2048);
  EXPECT_EQ(settings.config.model.model_name_or_path, "meta-llama/Llama-2-70b-chat-hf");
  EXPECT_EQ(num_warmup_steps(settings.config.optim, 500), 15);
}

TEST_F(SettingsFiles, AccelerateErrorsNameFileAndLine) {
  struct Row {
    std::string text, message;
  };
  const std::vector<Row> table = {
      {"mixed_precision: bf16\n", ": found no distributed_type, expected one of NO, MULTI_CPU"},
      {"distributed_type: FSDP\nmixed_precison: bf16\n",
       ":2: found the unknown key \"mixed_precison\", expected a known setting; did you mean "
       "mixed_precision?"},
      {"distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_param: true\n",
       ":3: found the unknown key \"fsdp_offload_param\" in fsdp_config, expected a known setting; "
       "did you mean fsdp_offload_params?"},
      {"distributed_type: MEGATRON_LM\n",
       ":1 (distributed_type): found \"MEGATRON_LM\", expected one of NO, MULTI_CPU, MULTI_GPU, "
       "FSDP, DEEPSPEED; it "
       "is not supported in this version"},
      {"distributed_type: FSDP\nmixed_precision: fp8\n",
       ":2 (mixed_precision): found \"fp8\", expected one of no, bf16, fp16; it is not supported "
       "in this version"},
      {"distributed_type: FSDP\nfsdp_config: 5\n", ":2: found no mapping"},
      {"distributed_type: FSDP\nlearning_rate: 5\n", ":2: found the unknown key \"learning_rate\""},
      {"distributed_type: FSDP\nfsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n"
       "  fsdp_sync_module_states: false\n",
       ":4 (fsdp_sync_module_states): found false beside fsdp_cpu_ram_efficient_loading true"},
  };
  for (const Row& row : table) {
    const std::string file = write("fsdp.yaml", row.text);
    EXPECT_THAT(error_of({"--config_file", file}), HasSubstr(file + row.message));
  }
}

TEST_F(SettingsFiles, DistributedTypesAndReshardBecomeAStrategy) {
  struct Row {
    std::string text;
    Flags launch_flags;
    std::string strategy;
  };
  const std::vector<Row> table = {
      {"distributed_type: MULTI_GPU\n", {}, "NO_SHARD"},
      {"distributed_type: 'NO'\n", {}, "NO_SHARD"},
      {"distributed_type: no\n", {}, "NO_SHARD"},
      {"distributed_type: MULTI_GPU\n", {"--use_fsdp"}, "FULL_SHARD"},
      {"distributed_type: FSDP\n", {"--multi_gpu"}, "NO_SHARD"},
      {"distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}\n",
       {},
       "FULL_SHARD"},
      {"distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, reshard_after_forward: false}\n",
       {},
       "SHARD_GRAD_OP"},
      {"distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: SHARD_GRAD_OP}\n",
       {},
       "SHARD_GRAD_OP"},
      {"distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 4, "
       "fsdp_reshard_after_forward: true}\n",
       {},
       "HYBRID_SHARD"},
      {"distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD_ZERO2}\n",
       {},
       "HYBRID_SHARD_ZERO2"},
      {"distributed_type: FSDP\n", {"--zero_stage", "1"}, "ZERO1"},
      {"distributed_type: FSDP\n", {"--fsdp", "hybrid_shard auto_wrap"}, "HYBRID_SHARD"},
      {"distributed_type: FSDP\n", {"--fsdp=full shard"}, "FULL_SHARD"},
      {"distributed_type: FSDP\n", {"--fsdp", "shard_grad_op auto_wrap"}, "SHARD_GRAD_OP"},
  };
  for (const Row& row : table) {
    Flags flags = {"--config_file", write("fsdp.yaml", row.text)};
    flags.insert(flags.end(), row.launch_flags.begin(), row.launch_flags.end());
    EXPECT_EQ(resolve({.launch_flags = flags}).config.shard.sharding_strategy, row.strategy)
        << row.text;
  }
  const std::string file = write("fsdp.yaml",
                                 "distributed_type: FSDP\nfsdp_config:\n"
                                 "  fsdp_sharding_strategy: FULL_SHARD\n"
                                 "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n");
  EXPECT_THAT(error_of({"--config_file", file}),
              HasSubstr("fsdp_sharding_strategy: found FULL_SHARD (" + file + ":3) and"));
}

TEST_F(SettingsFiles, MultiCpuRunsOnTheCpu) {
  const std::string file = write("cpu.yaml", "distributed_type: MULTI_CPU\nnum_processes: -1\n");
  const RunConfig config = config_of({"--config_file", file});
  EXPECT_TRUE(config.launch.cpu);
  EXPECT_EQ(config.launch.num_processes, 0);
}

TEST_F(SettingsFiles, DefaultFileOfAccelerateIsReadByTheLauncher) {
  fs::create_directories(folder_ / "accelerate");
  write("accelerate/default_config.yaml", "{\"distributed_type\": \"FSDP\", \"num_processes\": 3}");
  Sources sources{.environment = {{"HF_HOME", folder_.string()}}, .use_default_file = true};
  EXPECT_EQ(resolve(sources).config.launch.num_processes, 3);
  sources.launch_flags = {"--cpu"};
  EXPECT_EQ(resolve(sources).config.launch.num_processes, 0);
  sources.launch_flags = {};
  sources.use_default_file = false;
  EXPECT_EQ(resolve(sources).config.launch.num_processes, 0);
}

TEST_F(SettingsFiles, FsdpConfigMayBeAFolder) {
  write("fsdp_config.json", "{\"backward_prefetch\": \"NO_PREFETCH\", \"min_num_params\": 0}");
  EXPECT_EQ(config_of({"--fsdp_config", folder_.string() + "/"}).shard.backward_prefetch,
            "NO_PREFETCH");
}

TEST(Offload, ContradictionsAreErrors) {
  const struct {
    Flags flags;
    std::string message;
  } rows[] = {
      {{"--offload_optimizer_device", "nvme"},
       "--offload_optimizer_device: found nvme without a folder, expected one on a disk; add "
       "--offload_optimizer_nvme_path"},
      {{"--offload_param_device", "nvme"}, "add --offload_param_nvme_path"},
      {{"--offload_param_device", "nvme", "--offload_param_nvme_path", "/d",
        "--fsdp_sharding_strategy", "NO_SHARD"},
       "keeps all parameters whole"},
      {{"--offload_param_device", "nvme", "--offload_param_nvme_path", "/d", "--zero_stage", "1"},
       "strategy ZERO1"},
      {{"--offload_param_device", "nvme", "--offload_param_nvme_path", "/d", "--zero_stage", "2"},
       "choose FULL_SHARD"},
      {{"--offload_param_device", "nvme", "--offload_param_nvme_path", "/d",
        "--fsdp_offload_params", "true"},
       "expected one place for the parameters"},
      {{"--offload_optimizer_device", "nvme", "--offload_optimizer_nvme_path", "/d", "--optim",
        "adamw_bnb_8bit"},
       "found nvme with optim adamw_bnb_8bit"},
      {{"--offload_param_device", "disk"}, "expected one of none, cpu, nvme"},
      {{"--sub_group_size", "0"}, "expected an integer of at least 1"},
      // Two more than an int holds are not two.
      {{"--dp_shard_size", "4294967298"}, "expected an integer in [0, 1048576]"},
      {{"--dp_replicate_size", "4294967298"}, "expected an integer in [0, 1048576]"},
      {{"--fsdp_reshard_after_forward", "4294967298"}, "or an integer in [2, 1048576]"},
      {{"--limit_all_gathers", "3000000000"}, "or an integer in [1, 1048576]"},
      {{"--activation_offloading", "--gradient_checkpointing", "false"},
       "--activation_offloading: found true with gradient_checkpointing false "
       "(--gradient_checkpointing), expected full activation checkpointing"},
      {{"--activation_offloading", "cpu", "--activation_checkpointing", "selective"},
       "found true with gradient_checkpointing_mode selective (--activation_checkpointing)"},
      {{"--activation_offloading", "disk"},
       "--activation_offloading: found disk without a folder, expected one on a disk; add "
       "--activation_offloading_path"},
      {{"--activation_offloading", "tape"}, "expected one of false, true, disk"},
  };
  for (const auto& row : rows) EXPECT_THAT(error_of(row.flags), HasSubstr(row.message));
}

TEST(Sharding, PrefetchBesideOneUnitAtATimeIsSaid) {
  const auto warnings = [](Flags flags) {
    flags.insert(flags.end(), {"--fsdp_limit_all_gathers", "1"});
    return resolve({.flags = flags}).warnings;
  };
  constexpr const char* kReason =
      ": has no effect; fsdp_limit_all_gathers is 1: no unit is gathered beside another";
  for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"}) {
    EXPECT_THAT(warnings({"--fsdp_sharding_strategy", strategy, "--fsdp_backward_prefetch",
                          "BACKWARD_PRE", "--fsdp_forward_prefetch", "true"}),
                ElementsAre("--fsdp_backward_prefetch" + std::string(kReason),
                            "--fsdp_forward_prefetch" + std::string(kReason)));
    EXPECT_THAT(warnings({"--fsdp_sharding_strategy", strategy, "--fsdp_backward_prefetch",
                          "BACKWARD_POST", "--fsdp_forward_prefetch", "false"}),
                IsEmpty());
  }
  EXPECT_THAT(warnings({}), IsEmpty()) << "nobody asked for a prefetch";
  EXPECT_THAT(resolve({.flags = {"--fsdp_limit_all_gathers", "2", "--fsdp_backward_prefetch",
                                 "BACKWARD_PRE"}})
                  .warnings,
              IsEmpty());
}

TEST(Offload, WhatHasNoEffectIsSaid) {
  const auto warnings = [](const Flags& flags) { return resolve({.flags = flags}).warnings; };
  EXPECT_THAT(
      warnings({"--offload_param_nvme_path", "/d"}),
      ElementsAre("--offload_param_nvme_path: has no effect; offload_param_device is none"));
  EXPECT_THAT(warnings({"--sub_group_size", "5"}),
              ElementsAre(HasSubstr("nothing rests in files")));
  EXPECT_THAT(warnings({"--activation_offloading", "--activation_offloading_path", "/d"}),
              ElementsAre("--activation_offloading_path: has no effect; activation_offloading is "
                          "true"));
  EXPECT_THAT(warnings({"--activation_offloading", "disk", "--activation_offloading_path", "/d",
                        "--aio_queue_depth", "5"}),
              IsEmpty());
  EXPECT_THAT(warnings({"--aio_queue_depth", "5"}),
              ElementsAre(HasSubstr("nothing rests in files")));
  EXPECT_THAT(warnings({"--offload_optimizer_device", "nvme", "--offload_optimizer_nvme_path", "/d",
                        "--sub_group_size", "5", "--aio_block_size", "4096"}),
              IsEmpty());
}

TEST(EnvironmentVariables, OfAccelerateAreRead) {
  const Settings settings =
      resolve({.environment = {{"ACCELERATE_MIXED_PRECISION", "no"},
                               {"FSDP_VERSION", "2"},
                               {"FSDP_RESHARD_AFTER_FORWARD", "false"},
                               {"FSDP_TRANSFORMER_CLS_TO_WRAP", "LlamaDecoderLayer"},
                               {"FSDP_ACTIVATION_CHECKPOINTING", "true"},
                               {"ACCELERATE_DYNAMO_BACKEND", "NO"},
                               {"FSDP_NONSENSE", "1"},
                               {"PATH", "/bin"}}});
  EXPECT_FALSE(settings.config.shard.bf16);
  EXPECT_EQ(settings.config.shard.sharding_strategy, "SHARD_GRAD_OP");
  EXPECT_TRUE(settings.config.shard.gradient_checkpointing);
  EXPECT_THAT(settings.warnings,
              Contains("environment variable FSDP_NONSENSE: has no effect; no setting of this name "
                       "is known"));
}

TEST(Show, IsAFileThatReadsBack) {
  const Settings settings =
      resolve({.flags = {"--learning_rate", "1e-4", "--use_peft", "--lora_target_modules",
                         ".*[qv]_proj", "--eval_steps", "none", "--eos_token", "<|im_end|>"}});
  const fs::path file = fs::temp_directory_path() / fmt::format("strata_show_{}.yaml", ::getpid());
  std::ofstream(file) << show_settings(settings);
  const Settings again = resolve({.flags = {"--config", file.string()}, .flags_are_mixed = true});
  fs::remove(file);
  EXPECT_EQ(again.config.optim.learning_rate, 1e-4);
  EXPECT_EQ(again.config.data.eos_token, "<|im_end|>");
  EXPECT_EQ(again.config.train.eval_steps, std::nullopt);
  EXPECT_THAT(again.config.lora.target_modules, ElementsAre(".*[qv]_proj"));
  EXPECT_THAT(show_settings(settings), HasSubstr("learning_rate: 0.0001  # --learning_rate\n"));
}

}  // namespace
}  // namespace strata::config
