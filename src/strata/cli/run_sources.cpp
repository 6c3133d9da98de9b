// Environment and arguments to config::Sources.
#include "strata/cli/run_sources.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/base/visible_text.h"
#include "strata/cli/standard_streams.h"
#include "strata/config/recipes.h"

extern char** environ;

namespace strata::cli {

config::Environment process_environment() {
  config::Environment result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

config::Sources rank_sources(const std::vector<std::string>& flags, const std::string& recipe) {
  config::Sources sources{.recipe = recipe, .flags = flags, .environment = process_environment()};
  auto launched = sources.environment.find(kLaunchFlagsVariable);
  if (launched != sources.environment.end()) {
    for (const Json& flag : parse_json(launched->second, kLaunchFlagsVariable)) {
      sources.launch_flags.push_back(flag.get<std::string>());
    }
    sources.use_default_file = true;
    const auto named = sources.environment.find(kRecipeVariable);
    if (named != sources.environment.end()) sources.recipe = named->second;
  }
  return sources;
}

std::string launch_flags_value(const std::vector<std::string>& flags) {
  Json list = Json::array();
  for (const std::string& flag : flags) list.push_back(flag);
  return dump_python(list, /*indent=*/-1);
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    tell("warning: {}\n", visible(warning));
  }
}

// Tells the warnings and puts the home folder in.
static std::vector<config::Given> settled(config::ParsedFlags flags) {
  print_warnings(flags.warnings);
  const char* home = std::getenv("HOME");
  for (config::Given& given : flags.given) config::expand_home(home == nullptr ? "" : home, given);
  return std::move(flags.given);
}

std::vector<config::Given> read_command_flags(std::span<const config::Setting> table,
                                              std::string_view command,
                                              const std::vector<std::string>& arguments) {
  return settled(config::parse_command_flags(table, command, arguments));
}

FlagsAndPaths read_command_flags_and_paths(std::span<const config::Setting> table,
                                           std::string_view command,
                                           const std::vector<std::string>& arguments) {
  config::FlagsAndWords flags = config::parse_flags_and_words(table, command, arguments);
  return {settled(std::move(flags.own)), std::move(flags.words)};
}

config::LaunchLine read_launch_line(const std::vector<std::string>& arguments,
                                    std::string_view command) {
  config::LaunchLine line = config::parse_launch_line(arguments, command);
  if (!line.program.empty()) return line;
  throw ConfigError(
      "strata {}: found nothing to run, expected {} or a script's name after the {} flags; see "
      "strata {} --help",
      command, config::recipe_commands(), command, command);
}

std::string command_of_recipe(const std::string& recipe) {
  return std::string(config::recipe_named(recipe).command);
}

bool is_recipe(const std::string& word) {
  return config::is_recipe_command(word) || word.ends_with(".py");
}

// "examples/train-DPO_2.py": train, dpo, 2.
static std::vector<std::string> words_of(const std::string& program) {
  std::vector<std::string> words(1);
  for (const char letter : std::filesystem::path(program).stem().string()) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else {
      words.emplace_back();
    }
  }
  return words;
}

static bool has(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

// Sft stands for what no other recipe does.
static const config::RecipeRow& recipe_for_script(const std::string& program) {
  const std::string name = std::filesystem::path(program).filename().string();
  const std::vector<std::string> words = words_of(program);
  for (const config::RecipeRow& row : config::recipes()) {
    for (const std::string_view part : row.script_parts) {
      if (name.find(part) != std::string::npos) return row;
    }
    for (const std::string_view word : row.script_words) {
      if (has(words, word)) return row;
    }
  }
  return config::recipe_named("sft");
}

// "trl.scripts.sft" of `-m`: sft.py.
static std::string script_of(const std::string& program, bool is_module) {
  return is_module ? program.substr(program.rfind('.') + 1) + ".py" : program;
}

[[noreturn]] static void refuse_method(const std::string& program, std::string_view method) {
  throw ConfigError(
      "{}: found another method ({}), expected supervised fine-tuning (sft, seq2seq), pairs of "
      "answers, one preferred to the other (dpo, orpo, cpo, reward), rated answers (kto), or "
      "texts with a label (classify)",
      program, method);
}

void require_own_method(const std::string& program, bool is_module) {
  constexpr std::string_view kMethods[] = {
      "bco", "grpo", "ppo",  "rloo", "xpo", "a2po",    "gmpo",      "gfpo", "dppo", "papo", "ddpo",
      "tpo", "gkd",  "sdft", "sdpo", "opd", "minillm", "alignprop", "prm",  "mlm",  "plm",  "ner"};
  // Also names of people, places and data: not of a script that says sft as well.
  constexpr std::string_view kIfNothingElse[] = {"distillation", "distill", "gold",
                                                 "nash",         "harbor",  "openreward"};
  constexpr const char* kOfPairs[] = {"dpo", "orpo", "cpo", "kto"};
  // Of answers that are made while training, or whose prompts hold pictures.
  constexpr std::string_view kOfAnswers[] = {"online", "vlm"};
  // What is classified there is no whole text.
  constexpr std::string_view kOfOthers[] = {"token", "image", "audio", "video"};
  // Scripts of transformers that other recipes have words of; alone these are names of data.
  constexpr std::string_view kScripts[] = {"run_qa", "run_seq2seq_qa", "run_swag", "run_fim",
                                           "run_speech_recognition"};
  const std::string own_name = script_of(program, is_module);
  const std::vector<std::string> words = words_of(own_name);
  const std::string file = std::filesystem::path(own_name).stem().string() + "_";
  const auto* const script = std::ranges::find_if(
      kScripts, [&](std::string_view name) { return file.starts_with(std::string(name) + "_"); });
  if (script != std::end(kScripts)) refuse_method(program, script->substr(4));
  for (const std::string& word : words) {
    const bool is_other =
        std::ranges::find(kMethods, word) != std::end(kMethods) ||
        (!has(words, "sft") &&
         std::ranges::find(kIfNothingElse, word) != std::end(kIfNothingElse)) ||
        (std::ranges::any_of(kOfPairs, [&](const char* of) { return has(words, of); }) &&
         std::ranges::find(kOfAnswers, word) != std::end(kOfAnswers)) ||
        (has(words, "classification") && std::ranges::find(kOfOthers, word) != std::end(kOfOthers));
    if (is_other) refuse_method(program, word);
  }
  for (const char* loss : {"simpo", "alphapo"}) {
    if (!has(words, loss)) continue;
    throw ConfigError(
        "{}: found the name of a loss, expected the recipe cpo, which has it; run strata cpo "
        "--loss_type {} --cpo_alpha 0 --beta BETA --simpo_gamma GAMMA (of scripts with a "
        "gamma_beta_ratio: that times beta)",
        program, loss);
  }
}

std::string recipe_of(const std::string& program, bool is_module) {
  if (config::is_recipe_command(program)) return program;
  require_own_method(program, is_module);
  const std::string script = script_of(program, is_module);
  if (!is_recipe(script)) {
    throw ConfigError(
        "{}: found an unknown recipe, expected {} or a script's name ending in .py; for your own "
        "program add --no_python",
        program, config::recipe_commands());
  }
  const config::RecipeRow& recipe = recipe_for_script(script);
  tell("{}: running the built-in recipe {} in its place\n", program, recipe.command);
  return std::string(recipe.name);
}

std::string recipe_of(const config::LaunchLine& line) {
  const auto module = std::ranges::find_if(
      line.given, [](const config::Given& given) { return given.setting->name == "module"; });
  return recipe_of(line.program,
                   module != line.given.end() && config::canonical_text(*module) == "true");
}

}  // namespace strata::cli
