// Oracle: HfArgumentParser's documented rules, and a table of (flags, result or exact error).
#include "strata/config/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "settings_files.h"
#include "strata/base/error.h"
#include "strata/config/derived.h"
#include "strata/config/describe.h"
#include "strata/config/flags.h"

namespace strata::config {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Flags, AreReadAsHfArgumentParserDoes) {
  const RunConfig config = config_of({"--max-steps",
                                      "7",
                                      "--learning_rate=1e-4",
                                      "--packing",
                                      "--bf16",
                                      "False",
                                      "--eval_steps",
                                      "0.5",
                                      "--no_gradient_checkpointing",
                                      "--use_peft",
                                      "yes",
                                      "--lora_target_modules",
                                      "q_proj",
                                      "v_proj",
                                      "--data_seed",
                                      "3",
                                      "--eval_strategy",
                                      "steps",
                                      "--max_seq_length",
                                      "64"});
  EXPECT_EQ(config.train.max_steps, 7);
  EXPECT_EQ(config.optim.learning_rate, 1e-4);
  EXPECT_TRUE(config.data.packing);
  EXPECT_FALSE(config.shard.bf16);
  EXPECT_EQ(config.train.eval_steps, 0.5);
  EXPECT_FALSE(config.shard.gradient_checkpointing);
  EXPECT_THAT(config.lora.target_modules, ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(config.train.data_seed, 3u);
  EXPECT_EQ(config.data.max_length, 64);
}

TEST(Flags, NegativeNumbersAreValues) {
  EXPECT_EQ(config_of({"--max_steps", "-1"}).train.max_steps, -1);
}

TEST(Flags, ListsTakeCommasAndExpressionsKeepThem) {
  EXPECT_THAT(config_of({"--use_peft", "--lora_target_modules", "q_proj, k_proj,v_proj"})
                  .lora.target_modules,
              ElementsAre("q_proj", "k_proj", "v_proj"));
  EXPECT_THAT(
      config_of({"--use_peft", "--lora_target_modules", ".*\\.[qv]_proj{1,2}"}).lora.target_modules,
      ElementsAre(".*\\.[qv]_proj{1,2}"));
}

TEST(Flags, BooleansInAllSpellings) {
  for (const char* text : {"yes", "true", "t", "y", "1", "True", "ON"}) {
    EXPECT_TRUE(config_of({"--packing", text}).data.packing) << text;
  }
  for (const char* text : {"no", "false", "f", "n", "0", "False", "off"}) {
    EXPECT_FALSE(config_of({"--packing", text}).data.packing) << text;
  }
}

TEST(Flags, ActivationCheckpointingNamesAMode) {
  struct Row {
    Flags flags;
    bool on;
    std::string mode;
  };
  const std::vector<Row> table = {
      {{}, true, "full"},
      {{"--activation_checkpointing"}, true, "full"},
      {{"--activation_checkpointing", "selective"}, true, "selective"},
      {{"--activation_checkpointing", "attention"}, true, "attention"},
      {{"--activation_checkpointing", "auto"}, true, "auto"},
      {{"--activation_checkpointing", "none"}, false, "full"},
      {{"--activation_checkpointing", "False"}, false, "full"},
      {{"--gradient_checkpointing", "--gradient_checkpointing_mode", "selective"},
       true,
       "selective"},
      {{"--fsdp_activation_checkpointing", "true", "--activation_checkpointing", "selective"},
       true,
       "selective"},
      {{"--fsdp_activation_checkpointing", "true", "--gradient_checkpointing", "false"},
       true,
       "full"},
      {{"--activation_checkpointing", "false", "--fsdp_activation_checkpointing", "true"},
       true,
       "full"},
      {{"--fsdp_activation_checkpointing", "false", "--gradient_checkpointing", "false"},
       false,
       "full"},
  };
  for (const Row& row : table) {
    const ShardConfig shard = config_of(row.flags).shard;
    EXPECT_EQ(shard.gradient_checkpointing, row.on) << fmt::format("{}", fmt::join(row.flags, " "));
    EXPECT_EQ(name_of(shard.checkpointing_mode), row.mode)
        << fmt::format("{}", fmt::join(row.flags, " "));
  }
}

TEST(Flags, ResumeTakesABooleanOrAFolder) {
  EXPECT_EQ(config_of({"--resume_from_checkpoint"}).train.resume_from_checkpoint, "true");
  EXPECT_EQ(config_of({"--resume_from_checkpoint", "True"}).train.resume_from_checkpoint, "true");
  EXPECT_EQ(config_of({"--resume_from_checkpoint", "False"}).train.resume_from_checkpoint, "");
  EXPECT_EQ(config_of({"--resume_from_checkpoint", "out/5"}).train.resume_from_checkpoint, "out/5");
}

struct Refusal {
  Flags flags;
  std::string message;
};

TEST(Flags, WrongOnesAreNamed) {
  const std::vector<Refusal> table = {
      {{"--learning_rat", "1"},
       "--learning_rat: found an unknown flag, expected a known one; did you mean "
       "--learning_rate?"},
      {{"--evalstrategy", "no"},
       "--evalstrategy: found an unknown flag, expected a known one; did you mean "
       "--eval_strategy?"},
      {{"--token", "hf_x"},
       "--token: found an unknown flag, expected a known one; set HF_TOKEN, which is written to no "
       "file of the run"},
      {{"--keep_linebreaks", "true"},
       "--keep_linebreaks: found an unknown flag, expected a known one; remove it: each line of a "
       "text file is a row, which ends with the end-of-sequence token"},
      {{"--zzzzqqqq"},
       "--zzzzqqqq: found an unknown flag, expected a known one; see strata sft --help"},
      {{"--ref_model_name_or_path", "m"},
       "--ref_model_name_or_path: found an unknown flag, expected a known one; remove it: the "
       "reference is the model that training starts from, no other"},
      {{"--max_completion_length", "8"},
       "--max_completion_length: found \"8\", expected none; not supported in this version (use "
       "max_length, which covers prompt and answer)"},
      {{"--reference_free"}, "--reference_free: found \"true\", expected false; not supported"},
      {{"--seed", "99999999999999999999"},
       "--seed: found \"99999999999999999999\", expected an integer of at least 0; it is at most "
       "18446744073709551615"},
      {{"--learning_rate", "1e999"}, "--learning_rate: found \"1e999\", expected a number"},
      {{"--llm_int8_threshold", "inf"}, "--llm_int8_threshold: found \"inf\", expected a number"},
      {{"--config", ""}, "--config: found an empty name, expected a path"},
      {{"--deepspeed="}, "--deepspeed: found an empty name, expected a path"},
      {{"--max_steps", "five"}, "--max_steps: found \"five\", expected an integer of at least -1"},
      {{"--max_steps", "1.5"}, "--max_steps: found \"1.5\", expected an integer of at least -1"},
      {{"--max_steps", "0"},
       "--max_steps: found 0, expected at least 1, or -1 for num_train_epochs"},
      {{"--max_steps"}, "--max_steps: found no value, expected an integer of at least -1"},
      {{"--max_steps", "--packing"},
       "--max_steps: found no value, expected an integer of at least -1"},
      {{"--per_device_train_batch_size", "0"},
       "--per_device_train_batch_size: found \"0\", expected an integer of at least 1"},
      {{"--use_peft", "--lora_dropout", "1"},
       "--lora_dropout: found \"1\", expected a number in [0, 1)"},
      {{"--learning_rate", "nan"},
       "--learning_rate: found \"nan\", expected a number of at least 0"},
      {{"--seed", "-3"}, "--seed: found \"-3\", expected an integer of at least 0"},
      {{"--packing", "maybe"}, "--packing: found \"maybe\", expected true or false"},
      {{"word"}, "word: found a word that belongs to no flag, expected --name value"},
      {{"--optim", "adagrad"},
       "--optim: found \"adagrad\", expected one of adamw_torch_fused, adamw_torch, "
       "adamw_bnb_8bit"},
      {{"--optim", "adm"},
       "--optim: found \"adm\", expected one of adamw_torch_fused, adamw_torch, adamw_bnb_8bit"},
      {{"--fsdp_sharding_strategy", "6"},
       "--fsdp_sharding_strategy: found \"6\", expected one of FULL_SHARD, SHARD_GRAD_OP, "
       "NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2, ZERO1, ZERO2"},
      {{"--zero_stage", "4"}, "--zero_stage: found \"4\", expected one of 0, 1, 2, 3"},
      {{"--zero_stage", "2", "--fsdp_sharding_strategy", "NO_SHARD"},
       "fsdp_sharding_strategy: found NO_SHARD (--fsdp_sharding_strategy) and ZERO2 "
       "(--zero_stage), expected one value"},
      {{"--fsdp_reshard_after_forward", "2", "--fsdp_sharding_strategy", "SHARD_GRAD_OP"},
       "--fsdp_reshard_after_forward: found 2 with the strategy SHARD_GRAD_OP"},
      {{"--fsdp_reshard_after_forward", "false", "--zero_stage", "3"},
       "fsdp_sharding_strategy: found FULL_SHARD (--zero_stage) and SHARD_GRAD_OP"},
      {{"--dp_shard_size", "2", "--zero_stage", "0"}, "found 2 with NO_SHARD"},
      {{"--limit_all_gathers", "0"}, "expected one of true, false, or an integer in [1, 1048576]"},
      {{"--fp16", "--bf16", "true"}, "--fp16: found with --bf16, expected one of them"},
      {{"--fp16", "--param_dtype", "bf16"},
       "--param_dtype: found bfloat16 with fp16 (--fp16), expected float16"},
      {{"--activation_checkpointing", "none", "--fsdp_activation_checkpointing", "true"},
       "--activation_checkpointing: found none and --fsdp_activation_checkpointing true, expected "
       "one choice; remove one"},
      {{"--activation_checkpointing", "none", "--gradient_checkpointing", "true"},
       "gradient_checkpointing: found true (--gradient_checkpointing) and false "
       "(--activation_checkpointing), expected one value; remove one"},
      {{"--activation_checkpointing", "some"},
       "--activation_checkpointing: found \"some\", expected one of none, selective, "
       "attention, full, auto"},
      {{"--neftune_noise_alpha", "-5"},
       "--neftune_noise_alpha: found \"-5\", expected a number of at least 0"},
      {{"--label_smoothing_factor", "1.5"},
       "--label_smoothing_factor: found \"1.5\", expected a number in [0, 1]"},
      {{"--label_smoothing_factor", "0.1", "--use_peft", "--peft_type", "PROMPT_TUNING",
        "--num_virtual_tokens", "4"},
       "--label_smoothing_factor: found 0.1 with peft_type PROMPT_TUNING, expected 0"},
      {{"--load_in_4bit"}, "--load_in_4bit: found without an adapter, expected one"},
      {{"--load_in_4bit", "--load_in_8bit", "--use_peft"},
       "--load_in_4bit: found with --load_in_8bit, expected one of them"},
      {{"--load_in_4bit", "--use_peft", "--bnb_4bit_blocksize", "96"},
       "--bnb_4bit_blocksize: found 96, expected a power of two from 32 to 4096"},
      {{"--num_processes", "2"},
       "--num_processes: found a flag of the launcher, expected flags of the recipe; write strata "
       "launch --num_processes ... sft ..."},
      {{"--lora_r", "4"},
       "--lora_r: found without use_peft, expected LoRA to be on; add --use_peft or remove it"},
      {{"--trainable_token_indices", "3,4"}, "--trainable_token_indices: found without use_peft"},
      {{"--ensure_weight_tying"}, "--ensure_weight_tying: found without use_peft"},
      {{"--feedforward_modules", "down_proj"}, "--feedforward_modules: found without use_peft"},
      {{"--peft_type", "IA3"}, "--peft_type: found without use_peft"},
      {{"--use_peft", "--init_lora_weights", "eva"},
       "--init_lora_weights: found eva, whose initial values come from activations of the data "
       "and which is not supported, expected true, "},
      {{"--warmup_ratio", "0.1", "--warmup_steps", "5"},
       "--warmup_ratio: found 0.1 with --warmup_steps 5, expected one kind of warm-up; remove "
       "one"},
      {{"--eval_strategy", "epoch", "--splits", "train"},
       "--eval_strategy: found an evaluation without a test split in splits (train), expected two "
       "names; write splits as train,test or set eval_strategy no"},
      {{"--save_steps", "0"},
       "--save_steps: found 0, expected a whole number of updates, or a fraction below 1"},
      {{"--logging_steps", "2.5"},
       "--logging_steps: found 2.5, expected a whole number of updates, or a fraction below 1"},
      {{"--max_shard_size", "5 pounds"},
       "--max_shard_size: found \"5 pounds\", expected a size like 50GB, 200MB or 1000000"},
      {{"--lr_scheduler_kwargs", "[1]"},
       "--lr_scheduler_kwargs: found [1], expected a JSON object like {\"num_cycles\": 2}"},
      {{"--use_peft", "--use_peft_lora"},
       "--use_peft_lora: found with --use_peft, expected one of them (their LoRA defaults "
       "differ); remove one"},
      {{"--no_packing"},
       "--no_packing: found an unknown flag, expected a known one; write --packing false, which it "
       "is "
       "by default"},
      {{"--config", "no/such.yaml"}, "no/such.yaml: "},
  };
  for (const Refusal& row : table) EXPECT_THAT(error_of(row.flags), HasSubstr(row.message));
}

TEST(Lora, TheTwoSwitchesBringTheirOwnDefaults) {
  const LoraConfig trl = config_of({"--use_peft"}).lora;
  EXPECT_EQ(trl.r, 16);
  EXPECT_EQ(trl.alpha, 32);
  EXPECT_EQ(trl.dropout, 0.05);
  EXPECT_THAT(trl.target_modules, IsEmpty());

  const Settings example = resolve({.flags = {"--use_peft_lora", "True", "--lora_r", "8"}});
  EXPECT_TRUE(example.config.lora.use_peft);
  EXPECT_EQ(example.config.lora.r, 8);
  EXPECT_EQ(example.config.lora.alpha, 16);
  EXPECT_EQ(example.config.lora.dropout, 0.1);
  EXPECT_THAT(
      example.config.lora.target_modules,
      ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"));
  EXPECT_EQ(example.source_of("lora_alpha"), "implied by --use_peft_lora");
}

TEST(Lora, SwitchedOffExplicitlyItsFlagsOnlyWarn) {
  const Settings settings = resolve({.flags = {"--use_peft_lora", "False", "--lora_r", "8"}});
  EXPECT_FALSE(settings.config.lora.use_peft);
  EXPECT_THAT(settings.warnings, ElementsAre("--lora_r: has no effect; LoRA is off"));
}

TEST(Lora, WhatAnotherMethodHasIsNamedOnce) {
  const Flags flags = {"--trainable_token_indices", "3,4", "--ensure_weight_tying",
                       "--exclude_modules", "o_proj"};
  struct Row {
    Flags method;
    const char* reason;
    size_t count;
  };
  const std::vector<Row> table = {
      {{"--use_peft"}, "", 0},
      {{"--use_peft", "--peft_type", "IA3"}, "peft_type is IA3", 2},
      {{"--use_peft", "--peft_type", "VERA"}, "peft_type is VERA", 3},
      {{"--use_peft", "--peft_type", "PROMPT_TUNING", "--num_virtual_tokens", "2"},
       "peft_type is PROMPT_TUNING",
       3},
      {{"--adapter_name_or_path", "a"}, "the adapter that is continued decides", 3},
      {{"--adapter_name_or_path", "a", "--init_lora_weights", "eva"},
       "the adapter that is continued decides",
       4},
  };
  for (const Row& row : table) {
    Flags words = row.method;
    words.insert(words.end(), flags.begin(), flags.end());
    EXPECT_THAT(resolve({.flags = words}).warnings,
                AllOf(SizeIs(row.count), Each(HasSubstr(row.reason))));
  }
}

TEST(Lora, AnAdapterToContinueTurnsItOn) {
  EXPECT_TRUE(config_of({"--adapter_name_or_path", "a"}).lora.use_peft);
  EXPECT_THAT(error_of({"--adapter_name_or_path", "a", "--use_peft", "False"}),
              HasSubstr("expected LoRA to be on"));
}

TEST(Warnings, NameEveryFlagWithoutEffect) {
  const Settings settings =
      resolve({.flags = {"--push_to_hub", "False", "--eval_steps", "5", "--log_level", "info"}});
  EXPECT_THAT(settings.warnings, ElementsAre(HasSubstr("--log_level: has no effect here"),
                                             HasSubstr("--push_to_hub: has no effect here"),
                                             "--eval_steps: has no effect; eval_strategy is no"));
}

TEST(Warnings, SayNothingOfWhatIsDoneAnyway) {
  EXPECT_THAT(resolve({.flags = {"--do_train", "--do_eval", "True"}}).warnings, IsEmpty());
  EXPECT_THAT(resolve({.flags = {"--do_train", "False"}}).warnings, SizeIs(1));
}

// The example scripts of transformers evaluate once with do_eval, whatever happens in between.
TEST(DoEval, EvaluatesAtTheEnd) {
  const auto strategy_of = [](const Flags& flags) {
    return resolve({.flags = flags}).config.train.eval_strategy;
  };
  EXPECT_EQ(strategy_of({"--do_eval"}), Interval::kEnd);
  EXPECT_EQ(strategy_of({"--do_eval", "--eval_strategy", "no"}), Interval::kEnd);
  EXPECT_EQ(strategy_of({"--do_eval", "--eval_strategy", "epoch"}), Interval::kEpoch);
  EXPECT_EQ(strategy_of({"--do_eval", "False"}), Interval::kNo);
  EXPECT_EQ(strategy_of({"--do_train"}), Interval::kNo);
}

TEST(ReportTo, IsHonouredNamedOrRefused) {
  const auto warnings_of = [](const Flags& flags) { return resolve({.flags = flags}).warnings; };
  EXPECT_THAT(warnings_of({"--report_to", "none"}), IsEmpty());
  EXPECT_THAT(warnings_of({"--report_to", "tensorboard", "--logging_dir", "l"}), IsEmpty());
  EXPECT_THAT(warnings_of({"--report_to", "all", "--logging_dir", "l"}), IsEmpty());
  EXPECT_THAT(warnings_of({"--report_to", "tensorboard", "wandb"}),
              ElementsAre(HasSubstr("--report_to: wandb has no effect here; metrics go to")));
  EXPECT_THAT(warnings_of({"--logging_dir", "l"}),
              ElementsAre("--logging_dir: has no effect; report_to is not tensorboard"));
  EXPECT_THAT(error_of({"--report_to", "tensorbord"}), HasSubstr("did you mean tensorboard?"));
  EXPECT_THAT(error_of({"--report_to", "none,wandb"}), HasSubstr("found none with wandb"));
}

TEST(LaunchLine, SplitsAtTheProgramsName) {
  const Flags arguments = {"--num_processes", "2", "--cpu", "train.py", "--learning_rate", "1"};
  const LaunchLine line = parse_launch_line(arguments);
  EXPECT_EQ(line.program, "train.py");
  EXPECT_THAT(line.flags, ElementsAre("--num_processes", "2", "--cpu"));
  EXPECT_THAT(line.arguments, ElementsAre("--learning_rate", "1"));
  // As argparse, which torchrun and accelerate read their lines with.
  const LaunchLine apart = parse_launch_line(
      Flags{"--num_processes", "2", "--cpu", "--", "train.py", "--learning_rate", "1"});
  EXPECT_EQ(apart.program, "train.py");
  EXPECT_EQ(apart.flags, line.flags);
  EXPECT_EQ(apart.arguments, line.arguments);
  EXPECT_THAT(error_of(Sources{.launch_flags = {"--learning_rate", "1"}}),
              HasSubstr("found a flag of the recipe before its name"));
  EXPECT_THAT(error_of(Sources{.launch_flags = {"--num_proceses", "1"}}),
              HasSubstr("did you mean --num_processes?"));
}

TEST(LaunchLine, WithoutFlagsKeepsALeadingFile) {
  const Flags words = {"run.yaml", "--resume_from_checkpoint", "--seed", "1"};
  const std::string_view left_out[] = {"resume_from_checkpoint"};
  EXPECT_THAT(without_flags(words, left_out), ElementsAre("--config", "run.yaml", "--seed", "1"));
}

TEST(Flags, NameTheCommandThatReadsThem) {
  EXPECT_THAT(error_of(Sources{.recipe = "dpo", .flags = {"--zzzzqqqq"}}),
              HasSubstr("see strata dpo --help"));
  EXPECT_THAT(error_of(Sources{.recipe = "seq2seq", .flags = {"--num_processes", "2"}}),
              HasSubstr("write strata launch --num_processes ... seq2seq ..."));
  const auto slurm_error = [](const Flags& words) {
    return error_of(Sources{.launch_flags = words, .launch_command = "slurm"});
  };
  EXPECT_THAT(slurm_error({"--zzzzqqqq"}), HasSubstr("see strata slurm --help"));
  EXPECT_THAT(slurm_error({"--max_steps", "3"}),
              HasSubstr("write strata slurm [slurm flags] sft --max_steps ..."));
  EXPECT_THAT(slurm_error({"--machine_rank", "1"}), HasSubstr("slurm --machine_rank: found 1"));
}

TEST(CommandFlags, WordsMayStandAnywhere) {
  const std::vector<Setting> table = {{.name = "all", .kind = Kind::kSource, .is_switch = true},
                                      {.name = "to", .kind = Kind::kSource}};
  const auto read = [&](const Flags& words) { return parse_flags_and_words(table, "c", words); };
  const auto all = [](const FlagsAndWords& flags) {
    for (const Given& given : flags.own.given) {
      if (given.setting->name == "all") return canonical_text(given);
    }
    return std::string("none");
  };
  for (const Flags& words : std::vector<Flags>{{"a", "--all", "b", "--to", "x"},
                                               {"--all", "a", "b"},
                                               {"--all", "yes", "a", "b"},
                                               {"a", "--all=1", "b"}}) {
    EXPECT_THAT(read(words).words, ElementsAre("a", "b"));
    EXPECT_EQ(all(read(words)), "true");
  }
  for (const Flags& words :
       std::vector<Flags>{{"a", "--all", "false", "b"}, {"a", "b", "--all=no"}}) {
    EXPECT_THAT(read(words).words, ElementsAre("a", "b"));
    EXPECT_EQ(all(read(words)), "false");
  }
  EXPECT_THAT(
      read({"--all", "--all=false"}).own.warnings,
      ElementsAre("--all: found false after --all true, the same setting; the last one wins"));
  EXPECT_THROW(read({"\u2013all"}), ConfigError);
  EXPECT_THROW(read({"--to"}), ConfigError);
}

TEST(CommandFlags, OfTwoValuesTheLastCountsUnlessBothDo) {
  const Flags words = {"--seed", "1", "--prompt", "a", "--seed", "2", "--prompt", "b"};
  const ParsedFlags flags = parse_command_flags(chat_settings_table(), "chat", words);
  std::vector<std::string> texts;
  for (const Given& given : flags.given) texts.push_back(given.value.items.at(0));
  EXPECT_THAT(texts, ElementsAre("a", "2", "b"));
  EXPECT_THAT(flags.warnings, ElementsAre(HasSubstr("found 2 after --seed 1")));

  const Flags launched = {"--nodes", "2", "--num_processes", "4", "--nodes", "3", "sft"};
  const OwnFlags own = take_own_flags(slurm_settings_table(), "slurm", launched);
  EXPECT_THAT(own.own.given, SizeIs(1));
  EXPECT_THAT(own.own.warnings, ElementsAre(HasSubstr("found 3 after --nodes 2")));
  EXPECT_THAT(own.rest, ElementsAre("--num_processes", "4", "sft"));
}

TEST(Derived, StepsAndSizes) {
  OptimConfig optim;
  const std::vector<std::pair<double, int64_t>> golden = {
      {0, 0}, {0.03, 3}, {0.1, 10}, {1, 1}, {2.7, 2}};
  for (auto [value, steps] : golden) {
    optim.warmup_steps = value;
    EXPECT_EQ(num_warmup_steps(optim, 95), steps);
  }
  EXPECT_EQ(interval_steps(0.1, 95), 10);
  EXPECT_EQ(interval_steps(25, 95), 25);
}

TEST(Required, ModelAndDataAreAskedFor) {
  auto message = [](const Flags& flags) {
    try {
      require_runnable(resolve({.flags = flags}));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message({}), HasSubstr("model_name_or_path: found nothing"));
  EXPECT_THAT(message({"--model_name_or_path", "m"}), HasSubstr("dataset_name: found nothing"));
  EXPECT_EQ(message({"--model_name_or_path", "m", "--dataset_name", "d"}), "");
  EXPECT_EQ(message({"--model_name_or_path", "m", "--train_file", "f"}), "");
}

TEST(Flags, ADashOfATextProgramIsNamed) {
  EXPECT_EQ(error_of({"--seed", "1", "\u2013max_steps", "2"}),
            "\u2013max_steps: found a word that begins with a dash, expected two hyphens; write "
            "--max_steps");
}

}  // namespace
}  // namespace strata::config
