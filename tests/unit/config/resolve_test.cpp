// Oracle: the documented order of the sources of settings and their contradictions, with exact
// errors.
#include "strata/config/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "settings_files.h"
#include "strata/config/describe.h"
#include "strata/config/serialize.h"

namespace strata::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
    EXPECT_EQ(name_of(settings.config.shard.sharding_strategy), row.strategy);
    EXPECT_EQ(settings.source_of("fsdp_sharding_strategy"), row.source);
  }
}

// The file that a run leaves holds every setting: those at their defaults need no word.
TEST_F(SettingsFiles, ASettingsFileOfARunIsReadWithoutWarnings) {
  for (const char* recipe : {"sft", "dpo", "orpo", "cpo", "kto", "reward", "classify", "seq2seq"}) {
    for (const char* use_peft : {"true", "false"}) {
      const Flags flags = {"--use_peft", use_peft};
      const Settings first = resolve({.recipe = recipe, .flags = flags});
      EXPECT_THAT(first.warnings, IsEmpty());
      const std::string own = write("settings.json", to_json_text(first.config));
      const Settings again = resolve({.recipe = recipe, .flags = {"--config", own}});
      EXPECT_THAT(again.warnings, IsEmpty()) << recipe << ' ' << use_peft;
      EXPECT_EQ(settings_hash(again.config), settings_hash(first.config));
    }
  }
  // Where null is not what nobody gave, and lists of none and of expressions with commas.
  RunConfig config;
  config.data.max_length = std::nullopt;
  config.optim.max_grad_norm = 0;
  config.optim.learning_rate = 2e-5;
  config.lora.target_modules = {"layers.[0-9]{1,2}.q_proj", "v_proj"};
  const std::string odd = write("settings.json", to_json_text(config));
  EXPECT_EQ(settings_hash(resolve({.flags = {"--config", odd}}).config), settings_hash(config));
  const std::string changed = write("run.yaml", "save_strategy: no\nsave_steps: 7\n");
  EXPECT_THAT(resolve({.flags = {"--config", changed}}).warnings,
              ElementsAre(changed + ":2 (save_steps): has no effect; save_strategy is no"));
  EXPECT_EQ(resolve({.flags = {"--save_strategy", "no", "--save_steps", "500"}}).warnings.size(),
            1u);
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
  EXPECT_EQ(config.train.eval_strategy, Interval::kNo);
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
      {"max_length: 1\nmax_seq_length: 2\n", ":2: found \"max_seq_length\" with "},
      {"\n\nseed: one\n", ":3 (seed): found \"one\", expected an integer of at least 0"},
      {"seed: [1, 2]\n", ":1 (seed): found a list (1, 2), expected an integer of at least 0"},
      {"max_length: 0\n",
       ":1 (max_length): found \"0\", expected an integer of at least 1, or none"},
      {"seed: []\n", ":1 (seed): found an empty list, expected an integer of at least 0"},
      {"- 1\n", ":1: found no mapping, expected lines of \"key: value\""},
      {"seed: 1\n\tpacking: x: y\n", ":2:"},
      {"config: other.yaml\n", ":1: found the unknown key \"config\""},
      {"optim: lomo\n",
       ":1 (optim): found \"lomo\", expected one of adamw_torch_fused, adamw_torch, "
       "adamw_bnb_8bit"},
      {"packing: maybe\n", ":1 (packing): found \"maybe\", expected true or false"},
      {"", ": found no settings (an empty file, or only comments), expected lines of "},
      {"# seed: 1\n\n", ": found no settings"},
      {"\n---\nnull\n", ": found no settings"},
      {"output_dir: a \"b\"\nseed: 1\noutput_dir: \"out\npacking: true\n",
       ":3: found a quote that is not closed"},
      {"output_dir: 'a\n  b'\noutput_dir: 'out\n  ", ":3: found a quote that is not closed"},
      {"output_dir: \"out", ":1: found a quote that is not closed"},
      // PyYAML takes none of these either.
      {"seed: 1\n\toutput_dir: x\n", ":2: found a tab at the beginning of the line"},
      {"seed: 1\nfsdp_config:\n\tfsdp_offload_params: true\n", ":3: found a tab"},
      {"fsdp_config:\n  a: 1\n \tb: 1\n", ":3: found a tab"},
      {"seed: 1\n\t\noutput_dir: x\n", ":2: found a tab"},
      {"seed: [\noutput_dir: x: y\n\ta: 1\n", ":2:14: found text that is not YAML"},
      // Tabs that PyYAML takes, before another error.
      {"{\n\t\"seed\": 1,\n\t\"packing\": true\n\t\"bf16\": true\n}\n",
       ":4:8: found text that is not YAML"},
      {"output_dir: |\n  a\n  \tb\nseed: 1\n  packing: true\n", ":5:"},
      {"output_dir: 'a\n\tb'\nseed: 1\nfsdp_config:\n\ta: 1\n", ":5: found a tab"},
      {std::string("seed: 1\n\0\0", 10), ": found a file that is not text (it has bytes of zero)"},
  };
  for (const Row& row : table) {
    const std::string file = write("run.yaml", row.text);
    const std::string message = error_of({"--config", file});
    EXPECT_THAT(message, HasSubstr(file + row.message)) << row.text;
  }
}

// yaml-cpp is told apart from a text that ends inside quotes; the values stay those of PyYAML.
TEST_F(SettingsFiles, TheHomeFolderIsMeantByATilde) {
  const std::string own =
      write("run.yaml", "model_name_or_path: ~/models/x\ndataset_name: data~/x\n");
  const RunConfig config = resolve({.flags = {"--config", own, "--output_dir=~/out"},
                                    .environment = {{"HOME", "/home/me"}}})
                               .config;
  EXPECT_EQ(config.model.model_name_or_path, "/home/me/models/x");
  EXPECT_EQ(config.data.dataset_name, "data~/x");
  EXPECT_EQ(config.train.output_dir, "/home/me/out");
  const RunConfig named =
      resolve({.flags = {"--config=~/run.yaml", "--offload_param_nvme_path=~/nvme"},
               .environment = {{"HOME", std::filesystem::path(own).parent_path().string()}}})
          .config;
  EXPECT_EQ(named.data.dataset_name, "data~/x");
  EXPECT_TRUE(named.shard.offload_param_nvme_path.ends_with("/nvme"));
}

TEST_F(SettingsFiles, TheEndOfAFileChangesNoValue) {
  for (const char* text : {"{}", "{}\n", "seed: 42\n# a comment", "\n \nseed: 42\n  "}) {
    EXPECT_EQ(config_of({"--config", write("run.yaml", text)}).train.seed, 42u) << text;
  }
  const auto name = [&](const std::string& text) {
    return config_of({"--config", write("run.yaml", text)}).train.output_dir;
  };
  EXPECT_EQ(name("output_dir: |\n  a\n\n"), "a\n");
  EXPECT_EQ(name("output_dir: |+\n  a\n\n"), "a\n\n");
  EXPECT_EQ(name("output_dir: |\n  a"), "a");
  EXPECT_EQ(name("output_dir: 'a\n  b'\n"), "a b");
  EXPECT_EQ(name("output_dir: a\n  b\n"), "a b");
}

TEST_F(SettingsFiles, TwoFilesThatContradictAreNamed) {
  const std::string own = write("run.yaml", "bf16: false\n");
  const std::string fsdp = write("fsdp.yaml", "distributed_type: FSDP\nmixed_precision: bf16\n");
  EXPECT_EQ(error_of({"--config", own, "--config_file", fsdp}),
            "bf16: found false (" + own + ":1) and true (" + fsdp +
                ":2 (mixed_precision)), expected one value; remove one");
  EXPECT_TRUE(config_of({"--config", own, "--config_file", fsdp, "--bf16", "True"}).shard.bf16);
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
      ": has no effect; fsdp_limit_all_gathers is 1: only one unit is gathered at a time";
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
              ElementsAre(HasSubstr("nothing is kept in files")));
  EXPECT_THAT(warnings({"--activation_offloading", "--activation_offloading_path", "/d"}),
              ElementsAre("--activation_offloading_path: has no effect; activation_offloading is "
                          "true"));
  EXPECT_THAT(warnings({"--activation_offloading", "disk", "--activation_offloading_path", "/d",
                        "--aio_queue_depth", "5"}),
              IsEmpty());
  EXPECT_THAT(warnings({"--aio_queue_depth", "5"}),
              ElementsAre(HasSubstr("nothing is kept in files")));
  EXPECT_THAT(warnings({"--offload_optimizer_device", "nvme", "--offload_optimizer_nvme_path", "/d",
                        "--sub_group_size", "5", "--aio_block_size", "4096"}),
              IsEmpty());
}

// Trainer takes offload and every_n_layers out of it and gives the rest to torch.utils.checkpoint.
TEST_F(SettingsFiles, KeywordsOfCheckpointingAreSettings) {
  const auto settings_of = [&](const std::string& text) {
    return resolve(
        {.flags = {"--config", write("run.yaml", "gradient_checkpointing: true\n" + text)}});
  };
  for (const char* name : {"activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"}) {
    const Settings settings = settings_of(
        std::string(name) + ": {offload: true, every_n_layers: 1, use_reentrant: false}\n");
    EXPECT_EQ(name_of(settings.config.shard.activation_offloading), "true") << name;
    EXPECT_THAT(settings.source_of("activation_offloading"),
                HasSubstr(std::string("run.yaml:2 (") + name + ".offload)"));
    EXPECT_THAT(settings.warnings,
                ElementsAre(HasSubstr(std::string("run.yaml:2 (") + name +
                                      ".use_reentrant): has no effect; recomputation has no "
                                      "variants")));
    for (const char* none : {": null\n", ": {}\n", ": {offload: false}\n"}) {
      const Settings plain = settings_of(name + std::string(none));
      EXPECT_EQ(name_of(plain.config.shard.activation_offloading), "false") << none;
      EXPECT_THAT(plain.warnings, IsEmpty()) << none;
    }
  }
  // The newer name counts.
  const Settings both = settings_of(
      "activation_checkpointing_kwargs: {offload: false}\n"
      "gradient_checkpointing_kwargs: {offload: true}\n");
  EXPECT_EQ(name_of(both.config.shard.activation_offloading), "false");
  EXPECT_THAT(both.warnings,
              ElementsAre(HasSubstr("has no effect; activation_checkpointing_kwargs is given")));
  // As in Trainer, they say nothing where nothing is recomputed.
  const Settings off =
      resolve({.flags = {"--gradient_checkpointing", "false", "--activation_checkpointing_kwargs",
                         R"({"offload": true, "every_n_layers": 2})"}});
  EXPECT_EQ(name_of(off.config.shard.activation_offloading), "false");
  EXPECT_THAT(off.warnings, ElementsAre(HasSubstr("has no effect; nothing is recomputed")));
  const std::string kwargs = "--activation_checkpointing_kwargs";
  EXPECT_EQ(error_of({kwargs, R"({"every_n_layers": 2})"}),
            kwargs +
                ".every_n_layers: found 2, expected 1; to recompute some of the layers use "
                "gradient_checkpointing_layers N (the first N)");
  EXPECT_EQ(error_of({kwargs, R"({"every_n_layers": 0})"}),
            kwargs + ".every_n_layers: found 0, expected a whole number of at least 1");
  EXPECT_EQ(error_of({kwargs, R"({"offload": "cpu"})"}),
            kwargs + ".offload: found \"cpu\", expected true or false");
}

// Trainer's ranks then have whole models, unless who starts them asks for something else.
TEST_F(SettingsFiles, NoFsdpIsNoSharding) {
  const std::string own = write("run.yaml", "fsdp: false\n");
  const std::string accelerate = write("fsdp.yaml", "distributed_type: FSDP\n");
  struct Row {
    Flags flags;
    std::string strategy, source;
  };
  const std::vector<Row> table = {
      {{"--config", own}, "NO_SHARD", own + ":1 (fsdp)"},
      {{"--fsdp", "false"}, "NO_SHARD", "--fsdp"},
      {{"--fsdp", "none"}, "FULL_SHARD", "default"},
      {{"--fsdp", ""}, "FULL_SHARD", "default"},
      {{"--fsdp", "true"}, "FULL_SHARD", "default"},
      {{"--config", write("null.yaml", "fsdp: null\n")}, "FULL_SHARD", "default"},
      {{"--config", own, "--fsdp_sharding_strategy", "ZERO2"}, "ZERO2", "--fsdp_sharding_strategy"},
      {{"--config", own, "--config_file", accelerate}, "FULL_SHARD", "default"},
  };
  for (const Row& row : table) {
    const Settings settings = resolve({.flags = row.flags});
    EXPECT_EQ(name_of(settings.config.shard.sharding_strategy), row.strategy) << row.source;
    EXPECT_EQ(settings.source_of("fsdp_sharding_strategy"), row.source);
  }
  const std::string zero = write("ds.json", R"({"zero_optimization": {"stage": 2}})");
  EXPECT_EQ(name_of(config_of({"--fsdp", "false", "--deepspeed", zero}).shard.sharding_strategy),
            "ZERO2");
}

TEST(Show, IsAFileThatReadsBack) {
  const Settings settings =
      resolve({.flags = {"--learning_rate", "1e-4", "--use_peft", "--lora_target_modules",
                         ".*[qv]_proj", "--eval_steps", "none", "--eos_token", "<|im_end|>"}});
  const strata::testing::TemporaryFolder folder;
  const std::string file = folder.put("shown.yaml", show_settings(settings)).string();
  const Settings again = resolve({.flags = {"--config", file}, .flags_are_mixed = true});
  EXPECT_EQ(again.config.optim.learning_rate, 1e-4);
  EXPECT_EQ(again.config.data.eos_token, "<|im_end|>");
  EXPECT_EQ(again.config.train.eval_steps, std::nullopt);
  EXPECT_THAT(again.config.lora.target_modules, ElementsAre(".*[qv]_proj"));
  EXPECT_THAT(show_settings(settings), HasSubstr("learning_rate: 0.0001  # --learning_rate\n"));
  // The default of these is another list than [].
  EXPECT_THAT(again.config.quantization.llm_int8_skip_modules, IsEmpty());
  EXPECT_THAT(again.config.lora.feedforward_modules, IsEmpty());
  for (const char* text : {"null", "Null", "NULL", "~", "true", "12"}) {
    const Settings of_text = resolve({.flags = {"--eos_token", text}});
    const std::string shown = folder.put("shown.yaml", show_settings(of_text)).string();
    EXPECT_EQ(config_of({"--config", shown}).data.eos_token, text);
  }
}

}  // namespace
}  // namespace strata::config
