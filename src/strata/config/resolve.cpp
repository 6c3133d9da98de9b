// The one path from sources to settings.
#include "strata/config/resolve.h"

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/checks/checks.h"
#include "strata/config/deepspeed/deepspeed.h"
#include "strata/config/field_text.h"
#include "strata/config/flags.h"
#include "strata/config/merge.h"
#include "strata/config/recipes.h"
#include "strata/config/settings_files.h"
#include "strata/config/translate.h"

namespace strata::config {
namespace {

void add_accelerate_file(const Sources& sources, Merge& merge) {
  const std::string named = merge.text("config_file");
  if (!named.empty()) {
    merge.add_all(read_accelerate_file(named, Rank::kFile));
    return;
  }
  if (!sources.use_default_file || merge.text("use_cpu") == "true") return;
  const auto path = default_accelerate_file([&](const std::string& name) {
    const auto found = sources.environment.find(name);
    return found == sources.environment.end() ? std::string() : found->second;
  });
  if (std::filesystem::exists(path)) {
    merge.add_all(read_accelerate_file(path, Rank::kDefaultFile));
  }
}

std::string home_of(const Environment& environment) {
  const auto home = environment.find("HOME");
  return home == environment.end() ? std::string() : home->second;
}

int world_size_of(const Sources& sources, const Merge& merge) {
  if (sources.world_size > 0) return sources.world_size;
  return std::stoi(merge.text("num_processes", "0"));
}

// A file that was written for one recipe would otherwise train by it under another one's command.
void require_one_recipe(const Sources& sources, const Merge& merge) {
  const Given* found = merge.find("recipe");
  if (sources.recipe.empty() || found->origin.rank >= Rank::kLaunchFlag) return;
  const std::string text = canonical_text(*found);
  if (recipe_named(text).command == recipe_named(sources.recipe).command) return;
  throw ConfigError(
      "{}: found {} for the command {}, expected the same; run strata {}, or remove it",
      named_source(*found), text, sources.recipe, text);
}

Merge merge_sources(const Sources& sources, std::vector<std::string>& warnings) {
  Merge merge(home_of(sources.environment));
  if (!sources.recipe.empty()) {
    merge.add(make_given("recipe", sources.recipe, {Rank::kImplied, "the recipe's name"}));
  }
  const std::string_view command =
      sources.recipe.empty() ? "sft" : recipe_named(sources.recipe).command;
  const ParsedFlags flags = sources.flags_are_mixed ? parse_mixed_flags(sources.flags, command)
                                                    : parse_run_flags(sources.flags, command);
  const LaunchLine launch = parse_launch_line(sources.launch_flags, sources.launch_command);
  merge.add_all(flags.given);
  merge.add_all(launch.given);
  warnings = launch.warnings;
  warnings.insert(warnings.end(), flags.warnings.begin(), flags.warnings.end());
  merge.add_all(read_environment(sources.environment, warnings));
  const std::string own = merge.text("config");
  if (!own.empty()) merge.add_all(read_own_file(own));
  add_accelerate_file(sources, merge);
  const std::string fsdp = merge.text("fsdp_config");
  if (!fsdp.empty()) merge.add_all(read_fsdp_config(fsdp));
  require_one_recipe(sources, merge);
  return merge;
}

std::string auto_text(const DsAuto& given, const Settings& settings) {
  if (!given.meaning.empty()) return fmt::format("{}: auto is {}", given.source, given.meaning);
  if (given.settings.empty()) return given.source + ": auto, and nothing here depends on it";
  std::vector<std::string> parts;
  for (const std::string& name : given.settings) {
    parts.push_back(fmt::format("{} {} ({})", name, field_text(get_setting(name), settings.config),
                                settings.source_of(name)));
  }
  // The batch of all ranks is a product, other lists are lists.
  const bool is_product = given.source.ends_with("(train_batch_size)");
  if (!is_product) return fmt::format("{}: auto is {}", given.source, fmt::join(parts, ", "));
  const int64_t sharers = settings.config.shard.sequence_parallel_size;
  return fmt::format("{}: auto is {} x ranks{}", given.source, fmt::join(parts, " x "),
                     sharers > 1 ? fmt::format(" / {} that share rows", sharers) : "");
}

}  // namespace

const std::string& Settings::source_of(const std::string& name) const {
  static const std::string kDefault = "default";
  const auto found = origins.find(name);
  return found == origins.end() ? kDefault : found->second.source;
}

Settings resolve(const Sources& sources) {
  Settings settings;
  Merge merge = merge_sources(sources, settings.warnings);
  translate_launcher_words(merge);
  const std::vector<DsAuto> autos =
      translate_deepspeed(merge, world_size_of(sources, merge), settings.warnings);
  translate(merge, settings.warnings);
  for (const auto& [name, given] : merge.all()) {
    if (given.setting->kind == Kind::kBound) assign(given, settings.config);
    settings.origins.emplace(name, given.origin);
  }
  check_settings(settings.config, merge, settings.warnings);
  // Trainer gives a stream no sampler.
  if (settings.config.data.dataset_streaming) {
    settings.config.train.train_sampling_strategy = Sampling::kSequential;
  }
  for (const DsAuto& one : autos) settings.autos.push_back(auto_text(one, settings));
  return settings;
}

std::string at_its_source(const Settings& settings, const std::string& message) {
  const size_t colon = message.find(": ");
  if (colon == std::string::npos) return message;
  const Setting* setting = find_setting(message.substr(0, colon));
  if (setting == nullptr) return message;
  const auto origin = settings.origins.find(std::string(setting->name));
  if (origin == settings.origins.end() || origin->second.rank <= Rank::kImplied) return message;
  return named_source({setting, {}, origin->second}) + message.substr(colon);
}

void require_model(const Settings& settings) {
  const RunConfig& config = settings.config;
  if (config.model.model_name_or_path.empty() && config.model.config_name.empty()) {
    throw ConfigError(
        "model_name_or_path: found nothing, expected a folder with a checkpoint; add "
        "--model_name_or_path DIR (or --config_name to train from scratch)");
  }
  if (!config.model.model_name_or_path.empty() && !config.model.config_name.empty()) {
    throw ConfigError(
        "config_name: found with model_name_or_path ({}), expected one of them; remove one",
        settings.source_of("model_name_or_path"));
  }
}

void require_runnable(const Settings& settings) {
  const RunConfig& config = settings.config;
  require_model(settings);
  if (config.data.dataset_name.empty() && config.data.train_file.empty()) {
    throw ConfigError(
        "dataset_name: found nothing, expected a file or folder with examples; add "
        "--dataset_name PATH");
  }
}

}  // namespace strata::config
