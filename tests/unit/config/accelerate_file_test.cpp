// Oracle: accelerate's documented rules and the files of public guides, with exact errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "settings_files.h"
#include "strata/config/derived.h"
#include "strata/config/settings_files.h"

namespace strata::config {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  EXPECT_EQ(settings.config.shard.sharding_strategy, ShardingStrategy::kFullShard);
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

// As PyYAML reads them, whatever stands behind the merge.
TEST_F(SettingsFiles, KeysBehindAMergeMakeAFileOneOfAccelerates) {
  const std::string file = write("merged.yaml", R"(<<: [&twice {<<: [*twice, *twice]}, {
  distributed_type: FSDP, fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}}]
num_processes: 3
)");
  EXPECT_EQ(flag_of_file(file), "--config_file");
  const std::string other = write("other.yaml", "<<: {seed: 4, <<: {max_steps: 2}}\n");
  EXPECT_EQ(flag_of_file(other), "--config");
}

TEST_F(SettingsFiles, MergedKeysOfAnAccelerateFileCount) {
  const std::string file = write("merged.yaml", R"(<<:
  distributed_type: FSDP
  fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}
num_processes: 3
)");
  const Settings settings = resolve({.launch_flags = {"--config_file", file}});
  EXPECT_EQ(settings.config.launch.num_processes, 3);
  EXPECT_EQ(settings.config.shard.sharding_strategy, ShardingStrategy::kShardGradOp);
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
  EXPECT_EQ(settings.config.shard.sharding_strategy, ShardingStrategy::kShardGradOp);
  EXPECT_EQ(settings.config.shard.backward_prefetch, BackwardPrefetch::kPost);
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
       ":4 (fsdp_sync_module_states): found false with fsdp_cpu_ram_efficient_loading true"},
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
    EXPECT_EQ(name_of(resolve({.launch_flags = flags}).config.shard.sharding_strategy),
              row.strategy)
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
  write("accelerate/default_config.yaml", "{\"distributed_type\": \"FSDP\", \"num_processes\": 3}");
  Sources sources{.environment = {{"HF_HOME", folder_.path().string()}}, .use_default_file = true};
  EXPECT_EQ(resolve(sources).config.launch.num_processes, 3);
  sources.launch_flags = {"--cpu"};
  EXPECT_EQ(resolve(sources).config.launch.num_processes, 0);
  sources.launch_flags = {};
  sources.use_default_file = false;
  EXPECT_EQ(resolve(sources).config.launch.num_processes, 0);
}

TEST_F(SettingsFiles, FsdpConfigMayBeAFolder) {
  write("fsdp_config.json", "{\"backward_prefetch\": \"NO_PREFETCH\", \"min_num_params\": 0}");
  EXPECT_EQ(config_of({"--fsdp_config", folder_.path().string() + "/"}).shard.backward_prefetch,
            BackwardPrefetch::kNone);
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
  EXPECT_EQ(settings.config.shard.sharding_strategy, ShardingStrategy::kShardGradOp);
  EXPECT_TRUE(settings.config.shard.gradient_checkpointing);
  EXPECT_THAT(settings.warnings,
              Contains("environment variable FSDP_NONSENSE: has no effect; no setting of this name "
                       "is known"));
}

}  // namespace
}  // namespace strata::config
