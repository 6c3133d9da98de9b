// Questionnaire, default, update and convert.
#include "strata/cli/config_files.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/cli/config_questions.h"
#include "strata/cli/run_sources.h"
#include "strata/config/accelerate_file.h"
#include "strata/config/deepspeed/export.h"
#include "strata/config/describe.h"
#include "strata/config/settings_files.h"
#include "strata/config/yaml_reader.h"
#include "strata/launch/plan.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

// A flag's text by its name; a word that belongs to no flag is the file.
std::map<std::string, std::string> read_flags(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  std::string file;
  bool takes_value = false;
  for (const std::string& word : arguments) {
    const bool is_flag = word.starts_with("-");
    if (!is_flag && !takes_value) {
      if (!file.empty()) {
        throw ConfigError("strata config: found {} with {}, expected one file; remove one", word,
                          file);
      }
      file = word;
      words.push_back("--config_file");
    }
    takes_value = is_flag && word.find('=') == word.npos && word != "--overwrite";
    words.push_back(word);
  }
  std::map<std::string, std::string> texts;
  for (const config::Given& given :
       read_command_flags(config::config_command_settings_table(), "config", words)) {
    texts[std::string(given.setting->name)] = config::canonical_text(given);
  }
  return texts;
}

void allow_only(const std::map<std::string, std::string>& texts, const std::string& action,
                const std::vector<std::string>& names) {
  for (const auto& [name, text] : texts) {
    if (std::ranges::find(names, name) == names.end()) {
      throw ConfigError("--{}: found with strata config {}, where it has no effect; remove it",
                        name, action);
    }
  }
}

fs::path target_file(const std::map<std::string, std::string>& texts) {
  if (auto found = texts.find("config_file"); found != texts.end()) return found->second;
  const config::Environment environment = process_environment();
  return config::default_accelerate_file([&](const std::string& name) {
    auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  });
}

void report_saved(const fs::path& path) {
  fmt::print("accelerate configuration saved at {}\n", path.string());
}

// The keys that accelerate fills in itself when a file lacks them.
Json with_defaults(Json file) {
  const Json defaults = config::default_accelerate_settings("no", 1);
  for (const auto& [key, value] : defaults.items()) {
    if (!file.contains(key)) file[key] = value;
  }
  return file;
}

void require_distributed_type(const Json& file, const fs::path& path) {
  if (file.contains("distributed_type")) return;
  throw ConfigError("{}: found no distributed_type, expected a configuration file of accelerate",
                    path.string());
}

void write_converted(const std::map<std::string, std::string>& texts, const std::string& content) {
  const auto output = texts.find("output_file");
  const bool overwrites = texts.contains("overwrite") && texts.at("overwrite") == "true";
  if (output == texts.end() && !overwrites) {
    fmt::print("{}", content);
    return;
  }
  const fs::path path = output != texts.end() ? output->second : texts.at("config_file");
  if (fs::exists(path) && !overwrites) {
    throw ConfigError(
        "{}: found a file already, expected none; pass --overwrite or another "
        "--output_file",
        path.string());
  }
  write_file_atomically(path, content);
  fmt::print("{}: written\n", path.string());
}

std::string converted_to_fsdp2(const fs::path& source, bool as_json) {
  std::vector<std::string> warnings;
  Json file;
  try {
    file = config::to_fsdp2(config::read_yaml_json(source), warnings);
  } catch (const ConfigError& error) {
    throw ConfigError("{}: {}", source.string(), error.what());
  }
  print_warnings(warnings);
  return as_json ? config::accelerate_json(file) : config::accelerate_yaml(file);
}

config::Settings settings_of_file(const fs::path& source) {
  return config::resolve(
      {.flags = {config::flag_of_file(source), source.string()}, .flags_are_mixed = true});
}

}  // namespace

int run_questionnaire(const std::vector<std::string>& flags) {
  const auto texts = read_flags(flags);
  allow_only(texts, "", {"config_file"});
  const fs::path path = target_file(texts);
  Prompt prompt;
  try {
    config::write_accelerate_file(path, ask_configuration(prompt));
  } catch (const Interrupted&) {
    fmt::print("\n");
    return 130;
  }
  report_saved(path);
  return 0;
}

int write_default(const std::vector<std::string>& flags) {
  const auto texts = read_flags(flags);
  allow_only(texts, "default", {"config_file", "mixed_precision"});
  const fs::path path = target_file(texts);
  if (fs::exists(path)) {
    throw ConfigError(
        "{}: found a configuration already, expected none; remove it, or name another with "
        "--config_file",
        path.string());
  }
  const auto precision = texts.find("mixed_precision");
  const Json file = config::default_accelerate_settings(
      precision == texts.end() ? "no" : precision->second, launch::inspect_machine({}).num_devices);
  if (path.has_parent_path()) fs::create_directories(path.parent_path());
  // JSON whatever the name, as accelerate does: it reads it as YAML, too.
  write_file_atomically(path, config::accelerate_json(file));
  report_saved(path);
  return 0;
}

int update(const std::vector<std::string>& flags) {
  const auto texts = read_flags(flags);
  allow_only(texts, "update", {"config_file"});
  const fs::path path = target_file(texts);
  const Json file = config::read_yaml_json(path);
  require_distributed_type(file, path);
  config::read_accelerate_file(path, config::Rank::kFile);  // judges the keys
  config::write_accelerate_file(path, with_defaults(file));
  fmt::print("Successfully updated the configuration file at {}.\n", path.string());
  return 0;
}

int convert(const std::vector<std::string>& flags) {
  const auto texts = read_flags(flags);
  allow_only(texts, "convert", {"config_file", "output_file", "overwrite", "to"});
  if (!texts.contains("config_file") || !texts.contains("to")) {
    throw ConfigError(
        "strata config convert: found no {}, expected --to fsdp2, deepspeed or strata and a file",
        texts.contains("to") ? "file" : "--to");
  }
  const fs::path source = texts.at("config_file");
  const auto output = texts.find("output_file");
  const fs::path target = output == texts.end() ? source : fs::path(output->second);
  if (texts.at("to") == "fsdp2") {
    write_converted(texts, converted_to_fsdp2(source, target.extension() == ".json"));
    return 0;
  }
  config::Settings settings = settings_of_file(source);
  const bool to_deepspeed = texts.at("to") == "deepspeed";
  const std::string content =
      to_deepspeed ? dump_python(config::to_deepspeed(settings, settings.warnings), /*indent=*/2,
                                 /*sort_keys=*/false) +
                         "\n"
                   : config::given_settings(settings);
  print_warnings(settings.warnings);
  write_converted(texts, content);
  return 0;
}

}  // namespace strata::cli
