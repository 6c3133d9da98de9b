// One record per setting: the single source of flags, file keys, help text, documentation and the
// "did you mean" list. Owns: names, allowed values, what is known but not supported. Never: where a
// value comes from (resolve.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "strata/config/run_config.h"

namespace strata::config {

// A field that holds one of a closed set (choices.h), behind its spelling.
struct ChoiceField {
  std::vector<std::string_view> names;
  std::string_view (*get)(const RunConfig&);
  void (*set)(RunConfig&, std::string_view name);  // one of the names
};

// The field of RunConfig that a setting fills; monostate for one that fills none itself.
using Field =
    std::variant<std::monostate, bool& (*)(RunConfig&), int& (*)(RunConfig&),
                 int64_t& (*)(RunConfig&), uint64_t& (*)(RunConfig&), double& (*)(RunConfig&),
                 std::string& (*)(RunConfig&), std::vector<std::string>& (*)(RunConfig&),
                 std::optional<bool>& (*)(RunConfig&), std::optional<int64_t>& (*)(RunConfig&),
                 std::optional<uint64_t>& (*)(RunConfig&), std::optional<double>& (*)(RunConfig&),
                 ChoiceField>;

// Makes a Field from a lambda without captures that returns the member by reference.
template <typename Accessor>
Field bind_field(Accessor accessor) {
  using Value = std::remove_reference_t<std::invoke_result_t<Accessor, RunConfig&>>;
  if constexpr (Choice<Value>) {
    ChoiceField field{
        .names = {},
        .get = [](const RunConfig& c) { return name_of(Accessor{}(const_cast<RunConfig&>(c))); },
        .set = [](RunConfig& c,
                  std::string_view name) { Accessor{}(c) = value_named<Value>(name).value(); }};
    for (const Spelled<Value>& known : spellings(Value{})) field.names.push_back(known.name);
    return field;
  } else {
    return static_cast<Value& (*)(RunConfig&)>(accessor);
  }
}
#define STRATA_FIELD(member) \
  ::strata::config::bind_field([](::strata::config::RunConfig & c) -> auto& { return c.member; })

// Who reads a setting: the recipe, the launcher, or both (sharding keys of an accelerate file).
enum class Scope : uint8_t { kRun, kLaunch, kBoth };

enum class Kind : uint8_t {
  kBound,       // fills `field`
  kSource,      // names a file of settings
  kTranslated,  // becomes other settings (translate.h)
  kUnbound,     // known from a peer: `harmless` values are accepted, all others refused
};

// What another value than in the run that saved a checkpoint means for one that resumes it.
enum class Resume : uint8_t {
  kFree,      // the same training: places, speed, precision, sharding. Rows and seeds are compared
              // by what progress.json says of them.
  kTraining,  // another training: a warning
  kTensors,   // perhaps other tensors, or others of the optimizer: named where they do not fit
  kBoth,
};

struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool max_open = false;  // max itself is not allowed
};

struct Setting {
  std::string_view name = {};
  std::vector<std::string_view> aliases = {};
  Kind kind = Kind::kBound;
  Field field = {};
  Resume resume = Resume::kFree;
  // A bare flag means true; every setting with a boolean field is one.
  bool is_switch = false;
  bool repeatable = false;  // the flag may be given several times
  Range range = {};
  // What null in a settings file stands for; empty: that nobody gave the setting.
  std::string_view null_means = {};
  // Allowed texts; empty: any, and of a ChoiceField all its names (choices_of()). Matched without
  // regard to case, stored as written here. With a range beside them whole numbers in it are
  // allowed too.
  std::vector<std::string_view> choices = {};
  // Other spellings of choices: {"1", "FULL_SHARD"}.
  std::vector<std::pair<std::string_view, std::string_view>> synonyms = {};
  // Further values that the peer knows and this version does not support.
  std::vector<std::string_view> refused = {};
  // Unbound: accepted values ("*": any). The first is the peer's default. In an accelerate file,
  // which its questionnaire fills with defaults, the listed ones cause no warning.
  std::vector<std::string_view> harmless = {};
  bool is_path = false;  // a leading ~ is the home folder
  // Of a text with a grammar of its own: what two that mean the same have in common
  // (normal_text.h); null: they are the same to the letter.
  std::string (*normal)(const std::string& text) = nullptr;
  // The meaning; for an unbound setting why it has no effect, or what to do instead.
  std::string_view help = {};
  std::string_view peer = {};
  std::string_view group = {};
  Scope scope = Scope::kRun;
  // A top-level key there; the names of its sections begin with fsdp_, dynamo_ and so on
  // (settings_files.cpp).
  bool in_accelerate_file = false;
};

std::span<const std::string_view> choices_of(const Setting& setting);

// Every setting, grouped, in the order of help and documentation.
std::span<const Setting> settings_table();

// The settings of `strata chat`, which are no settings of a run.
std::span<const Setting> chat_settings_table();

// The settings of `strata tokenize`, and those of `strata preview` beside the run's.
std::span<const Setting> tokenize_settings_table();
std::span<const Setting> preview_settings_table();

// The flags of `strata config` itself (questionnaire, default, update, convert).
std::span<const Setting> config_command_settings_table();

// The flags of `strata env` and of `strata slurm` itself.
std::span<const Setting> env_settings_table();
std::span<const Setting> slurm_settings_table();

// The settings that `strata plan` has beside those of a run.
std::span<const Setting> plan_settings_table();

// By name or alias, hyphens and underscores alike; null when unknown.
const Setting* find_setting(std::string_view name);
const Setting* find_setting(std::span<const Setting> table, std::string_view name);
// Requires: the name is known.
const Setting& get_setting(std::string_view name);

// The record of a run's setting for a command that has it too, with a field of its own. Requires:
// the name is known.
Setting same_setting(std::string_view name, Field field);

// The closest name or alias among the settings that `accept` admits.
std::optional<std::string> closest_setting(std::string_view name,
                                           bool (*accept)(const Setting&) = nullptr);
std::optional<std::string> closest_setting(std::span<const Setting> table, std::string_view name,
                                           bool (*accept)(const Setting&) = nullptr);

// Hyphens become underscores.
std::string normalized_name(std::string_view name);

// The parts of the table (settings/*.cpp), put together by settings_table().
std::vector<Setting> file_and_model_settings();
std::vector<Setting> row_settings();
std::vector<Setting> adapter_settings();
std::vector<Setting> training_settings();
std::vector<Setting> preference_settings();
std::vector<Setting> classification_settings();
std::vector<Setting> sharding_settings();
std::vector<Setting> launch_settings();
std::vector<Setting> accelerate_file_settings();
std::vector<Setting> accelerate_section_settings();
std::vector<Setting> unsupported_trainer_settings();
std::vector<Setting> unsupported_sft_settings();
std::vector<Setting> unsupported_lora_settings();

// What a part is written with: one group and, where a record names none, one peer; several lists in
// one.
std::vector<Setting> with_group(std::string_view group, std::string_view peer,
                                std::vector<Setting> settings);
std::vector<Setting> joined(std::initializer_list<std::vector<Setting> (*)()> parts);

}  // namespace strata::config
