// Oracle: the defaults that the reference's SFTConfig, ModelConfig and LoRA flags have, and the
// table's own rules (no name twice, every record complete).
#include "strata/config/field_text.h"
#include "strata/config/settings/table.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/config/describe.h"
#include "strata/config/foreign_names.h"
#include "strata/config/foreign_values.h"
#include "strata/config/serialize.h"
#include "strata/config/value.h"

namespace strata::config {
namespace {

TEST(SettingsTable, NoNameOrAliasCollides) {
  std::set<std::string_view> names;
  for (const Setting& setting : settings_table()) {
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    for (std::string_view alias : setting.aliases) {
      EXPECT_TRUE(names.insert(alias).second) << alias;
    }
  }
  EXPECT_GT(names.size(), 250u);
}

// What a message says of another program's name must be a name here.
TEST(SettingsTable, NamesOfOtherProgramsAreNoSettingsAndLeadToOne) {
  std::set<std::string_view> names;
  for (const ForeignName& foreign : foreign_names()) {
    SCOPED_TRACE(foreign.name);
    EXPECT_TRUE(names.insert(foreign.name).second);
    EXPECT_EQ(find_setting(foreign.name), nullptr);
    EXPECT_FALSE(foreign.setting.empty() && foreign.advice.empty());
    if (!foreign.setting.empty()) {
      EXPECT_NE(find_setting(foreign.setting), nullptr);
    }
  }
}

// What a message says of another program's value must be a value here, and the value itself none.
TEST(SettingsTable, ValuesOfOtherProgramsAreRefusedAndLeadToOne) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const ForeignValue& foreign : foreign_values()) {
    SCOPED_TRACE(fmt::format("{} {}", foreign.setting, foreign.value));
    EXPECT_TRUE(seen.insert({foreign.setting, foreign.value}).second);
    const Setting* setting = find_setting(foreign.setting);
    ASSERT_NE(setting, nullptr);
    EXPECT_EQ(setting->name, foreign.setting) << "not an alias";
    EXPECT_FALSE(foreign.use.empty() && foreign.advice.empty());
    const auto set = [&](std::string_view value) {
      canonical_text(make_given(std::string(foreign.setting), std::string(value), {}));
    };
    if (!foreign.use.empty()) {
      EXPECT_NO_THROW(set(foreign.use));
    }
    try {
      set(foreign.value);
      ADD_FAILURE() << "it is a value";
    } catch (const ConfigError& error) {
      const std::string advice = foreign_value_advice(*setting, foreign.value);
      EXPECT_NE(std::string(error.what()).find("; " + advice), std::string::npos) << error.what();
      EXPECT_EQ(advice.find('{') != std::string::npos, advice.find('}') != std::string::npos);
    }
  }
}

TEST(SettingsTable, EnumsOfPythonAndOtherSpellingsLeadToTheValue) {
  const auto advice = [](const char* name, const char* value) {
    return foreign_value_advice(*find_setting(name), value);
  };
  EXPECT_EQ(advice("lr_scheduler_type", "WSD"),
            "use warmup_stable_decay, with lr_scheduler_kwargs {\"num_decay_steps\": N}");
  EXPECT_EQ(advice("lr_scheduler_type", "cosine-with-warmup"), "use cosine with warmup_steps");
  EXPECT_EQ(advice("lr_scheduler_type", "SchedulerType.WARMUP_STABLE_DECAY"),
            "use warmup_stable_decay");
  EXPECT_EQ(advice("optim", "OptimizerNames.ADAMW_TORCH"), "use adamw_torch");
  EXPECT_EQ(advice("optim", "a.b"), "");
  EXPECT_EQ(advice("seed", "wsd"), "");
}

TEST(SettingsTable, EveryRecordIsComplete) {
  for (const Setting& setting : settings_table()) {
    SCOPED_TRACE(setting.name);
    EXPECT_FALSE(setting.help.empty());
    EXPECT_FALSE(setting.peer.empty());
    EXPECT_FALSE(setting.group.empty());
    EXPECT_EQ(setting.name.find('-'), std::string_view::npos);
    const bool has_field = !std::holds_alternative<std::monostate>(setting.field);
    EXPECT_EQ(has_field, setting.kind == Kind::kBound);
    EXPECT_EQ(!setting.harmless.empty(), setting.kind == Kind::kUnbound);
  }
}

// One of a closed set has a field of its own where no other setting's value changes with it.
TEST(SettingsTable, EveryChoiceHasItsOwnFieldAndReadsBackTheSame) {
  const RunConfig defaults;
  for (const Setting& setting : settings_table()) {
    const auto* field = std::get_if<ChoiceField>(&setting.field);
    if (field == nullptr) continue;
    SCOPED_TRACE(setting.name);
    for (const std::string_view name : choices_of(setting)) {
      RunConfig config;
      assign({&setting, {.items = {std::string(name)}}, {Rank::kFlag, "test"}}, config);
      EXPECT_EQ(field_text(setting, config), name);
      for (const Setting& other : settings_table()) {
        if (other.kind != Kind::kBound || &other == &setting) continue;
        EXPECT_EQ(field_text(other, config), field_text(other, defaults)) << other.name;
      }
    }
    EXPECT_GT(choices_of(setting).size(), 1u);
    for (const std::string_view name : setting.choices) {
      EXPECT_NE(std::ranges::find(field->names, name), field->names.end()) << name;
    }
  }
}

TEST(SettingsTable, EveryBoundSettingHasItsOwnField) {
  RunConfig config;
  std::map<void*, std::string_view> seen;
  for (const Setting& setting : settings_table()) {
    std::visit(
        [&](const auto& accessor) {
          using Accessor = std::decay_t<decltype(accessor)>;
          if constexpr (std::is_invocable_v<Accessor, RunConfig&>) {
            auto [first, is_new] = seen.emplace(&accessor(config), setting.name);
            EXPECT_TRUE(is_new) << setting.name << " and " << first->second;
          }
        },
        setting.field);
  }
}

TEST(SettingsTable, DefaultsAreValidAndReadBackTheSame) {
  const RunConfig defaults;
  for (const Setting& setting : settings_table()) {
    if (setting.kind != Kind::kBound) continue;
    SCOPED_TRACE(setting.name);
    const std::string text = field_text(setting, defaults);
    if (text.empty()) continue;
    Given given{&setting, {.items = {text}}, {Rank::kFlag, "test"}};
    EXPECT_EQ(canonical_text(given), text);
  }
}

TEST(SettingsTable, DefaultsAreTheReferences) {
  const std::map<std::string, std::string> expected = {
      {"per_device_train_batch_size", "8"},
      {"num_train_epochs", "3.0"},
      {"max_steps", "-1"},
      {"learning_rate", "2e-05"},
      {"lr_scheduler_type", "linear"},
      {"warmup_steps", "0.0"},
      {"optim", "adamw_torch_fused"},
      {"weight_decay", "0.0"},
      {"adam_beta1", "0.9"},
      {"adam_beta2", "0.999"},
      {"adam_epsilon", "1e-08"},
      {"gradient_accumulation_steps", "1"},
      {"max_grad_norm", "1.0"},
      {"label_smoothing_factor", "0.0"},
      {"neftune_noise_alpha", "none"},
      {"bf16", "true"},
      {"gradient_checkpointing", "true"},
      {"logging_strategy", "steps"},
      {"logging_steps", "10.0"},
      {"logging_first_step", "false"},
      {"eval_strategy", "no"},
      {"eval_steps", "none"},
      {"per_device_eval_batch_size", "8"},
      {"eval_on_start", "false"},
      {"save_only_model", "false"},
      {"save_strategy", "steps"},
      {"save_steps", "500.0"},
      {"save_total_limit", "none"},
      {"seed", "42"},
      {"data_seed", "none"},
      {"dataloader_drop_last", "false"},
      {"train_sampling_strategy", "random"},
      {"ddp_timeout", "1800"},
      {"dataset_text_field", "text"},
      {"max_length", "1024"},
      {"shuffle_dataset", "false"},
      {"packing", "false"},
      {"packing_strategy", "bfd"},
      {"eval_packing", "none"},
      {"completion_only_loss", "none"},
      {"assistant_only_loss", "false"},
      {"dtype", "float32"},
      {"use_peft", "false"},
      {"lora_r", "16"},
      {"lora_alpha", "32.0"},
      {"lora_dropout", "0.05"},
      {"use_rslora", "false"},
      {"output_dir", "trainer_output"},
  };
  for (const auto& [name, text] : expected) {
    EXPECT_EQ(field_text(get_setting(name), RunConfig{}), text) << name;
  }
}

TEST(SettingsTable, OlderNamesAreKnown) {
  const std::map<std::string, std::string> names = {
      {"evaluation_strategy", "eval_strategy"},
      {"max_seq_length", "max_length"},
      {"max_seq_len", "max_length"},
      {"model_name", "model_name_or_path"},
      {"use_gradient_checkpointing", "gradient_checkpointing"},
      {"torch_dtype", "dtype"},
      {"fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"},
      {"cpu", "use_cpu"},
      {"max-seq-length", "max_length"},
  };
  for (const auto& [name, setting] : names) {
    ASSERT_NE(find_setting(name), nullptr) << name;
    EXPECT_EQ(find_setting(name)->name, setting) << name;
  }
}

TEST(SettingsTable, HashIgnoresWhatDiffersBetweenMachines) {
  RunConfig a, b;
  b.launch.machine_rank = 3;
  b.launch.log_dir = "logs";
  EXPECT_EQ(settings_hash(a), settings_hash(b));
  b.optim.learning_rate = 1;
  EXPECT_NE(settings_hash(a), settings_hash(b));
}

TEST(SettingsTable, JsonHoldsEveryBoundSetting) {
  const std::string text = to_json_text(RunConfig{});
  for (const Setting& setting : settings_table()) {
    if (setting.kind != Kind::kBound) continue;
    EXPECT_NE(text.find("\"" + std::string(setting.name) + "\": "), std::string::npos)
        << setting.name;
  }
}

TEST(SettingsTable, JsonHoldsValuesOfTheirType) {
  RunConfig config;
  config.optim.learning_rate = 2e-5;
  config.optim.adam_epsilon = 1;
  config.data.packing = true;
  config.data.max_length = std::nullopt;
  config.lora.target_modules = {"q_proj", "v_proj"};
  const std::string text = to_json_text(config);
  for (const char* line :
       {"\"learning_rate\": 2e-05,", "\"adam_epsilon\": 1.0,", "\"packing\": true,",
        "\"max_length\": null,", "\"seed\": 42,", "\"save_strategy\": \"steps\",",
        "\"lora_target_modules\": [\n    \"q_proj\",\n    \"v_proj\"\n  ],"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace strata::config
