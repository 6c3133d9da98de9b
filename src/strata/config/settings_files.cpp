// Readers of the settings files.
#include "strata/config/settings_files.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/deepspeed/file.h"
#include "strata/config/field_text.h"
#include "strata/config/foreign_names.h"
#include "strata/config/yaml_reader.h"

namespace strata::config {
namespace {

namespace fs = std::filesystem;

// A section of accelerate's file and how the settings in it begin; the prefix may be missing there.
struct Section {
  std::string_view key, prefix;
  bool (*accepts)(const Setting&);
};

bool is_fsdp_key(const Setting& setting) {
  return setting.name.starts_with("fsdp_") && setting.name != "fsdp_config";
}

bool is_deepspeed_key(const Setting& setting) {
  static const std::set<std::string_view> kOthers = {
      "deepspeed",     "zero_stage",      "gradient_accumulation_steps",
      "max_grad_norm", "zero3_init_flag", "zero3_save_16bit_model"};
  return kOthers.contains(setting.name) || setting.name.starts_with("deepspeed_") ||
         setting.name.starts_with("offload_");
}

constexpr Section kSections[] = {
    {"fsdp_config", "fsdp_", is_fsdp_key},
    {"deepspeed_config", "", is_deepspeed_key},
    {"dynamo_config", "dynamo_", [](const Setting& s) { return s.name.starts_with("dynamo_"); }},
    {"parallelism_config", "parallelism_config_",
     [](const Setting& s) { return s.name.starts_with("parallelism_config_"); }},
    {"megatron_lm_config", "megatron_lm_",
     [](const Setting& s) { return s.name.starts_with("megatron_lm_"); }},
    {"fp8_config", "fp8_", [](const Setting& s) { return s.name.starts_with("fp8_"); }},
    {"mpirun_config", "mpirun_", [](const Setting& s) { return s.name.starts_with("mpirun_"); }},
};

bool is_accelerate_key(const Setting& setting) {
  return setting.in_accelerate_file || setting.name == "fsdp_config";
}
bool is_own_key(const Setting& setting) { return setting.name != "config"; }

// For a file of accelerate or a section of it.
std::string advice_for_accelerate(const std::string& key, bool (*accept)(const Setting&)) {
  if (find_setting(key)) return "pass it as a flag or in a file of --config";
  const auto near = closest_setting(key, accept);
  return near ? "did you mean " + *near + "?" : "remove it";
}

std::string advice_for(const std::string& key, bool (*accept)(const Setting&)) {
  if (accept != is_own_key) return advice_for_accelerate(key, accept);
  const std::string advice = unknown_advice(key, accept);
  // Not "remove it": what the key asks for would not happen.
  return advice.empty() ? "no setting is similar; see docs/guide/settings.md (strata config docs)"
                        : advice;
}

[[noreturn]] void throw_unknown(const std::string& place, const std::string& key,
                                const std::string& where, bool (*accept)(const Setting&)) {
  throw ConfigError("{}: found the unknown key \"{}\"{}, expected a known setting; {}", place, key,
                    where, advice_for(key, accept));
}

struct UnknownKey {
  std::string place, key;
  bool holds_settings = false;  // a section, of which other programs have some

  std::string advice(bool (*accept)(const Setting&)) const {
    return holds_settings ? "write its settings without it, at the top level"
                          : advice_for(key, accept);
  }
};

bool holds_settings(const YAML::Node& node) {
  if (!node.IsMap()) return false;
  return std::ranges::any_of(node, [](const auto& entry) {
    return entry.first.IsScalar() && find_setting(entry.first.Scalar()) != nullptr;
  });
}

// Who brings the file of another program learns of all its keys at once.
[[noreturn]] void throw_unknown(const std::string& file, const std::vector<UnknownKey>& keys,
                                bool (*accept)(const Setting&)) {
  if (keys.size() == 1) {
    throw ConfigError("{}: found the unknown key \"{}\", expected a known setting; {}",
                      keys[0].place, keys[0].key, keys[0].advice(accept));
  }
  std::string lines;
  for (const UnknownKey& unknown : keys) {
    lines += fmt::format("\n  {}: \"{}\": {}", unknown.place, unknown.key, unknown.advice(accept));
  }
  throw ConfigError("{}: found {} unknown keys, expected known settings; change them:{}", file,
                    keys.size(), lines);
}

void reject_second_name(const std::vector<Given>& given, const Setting& setting,
                        const std::string& key, const std::string& place) {
  for (const Given& other : given) {
    if (other.setting != &setting) continue;
    throw ConfigError("{}: found \"{}\" with {}, which sets the same, expected one; remove one",
                      place, key, other.origin.source);
  }
}

std::string origin_text(const std::string& place, const std::string& key, const Setting& setting) {
  return key == setting.name ? place : place + " (" + key + ")";
}

const Setting* find_section_key(const Section& section, const std::string& key) {
  const std::string prefix(section.prefix);
  const Setting* setting = find_setting(key.starts_with(prefix) ? key : prefix + key);
  if (!setting) setting = find_setting(key);  // min_num_params and the like
  return setting && section.accepts(*setting) ? setting : nullptr;
}

void read_section(const Section& section, const YAML::Node& mapping, const std::string& file,
                  Rank rank, std::vector<Given>& given) {
  for_each_key(mapping, file,
               [&](const std::string& key, const YAML::Node& node, const std::string& place) {
                 const Setting* setting = find_section_key(section, key);
                 if (!setting) {
                   throw_unknown(place, key, " in " + std::string(section.key), section.accepts);
                 }
                 reject_second_name(given, *setting, key, place);
                 Value value = yaml_value(node, place);
                 if (value.is_null) return;
                 given.push_back({setting, value, {rank, origin_text(place, key, *setting)}});
               });
}

const Section* find_section(const std::string& key) {
  const auto found = std::ranges::find(kSections, key, &Section::key);
  return found == std::end(kSections) ? nullptr : &*found;
}

void read_accelerate_mapping(const YAML::Node& root, const std::string& file, Rank rank,
                             std::vector<Given>& given) {
  for_each_key(
      root, file, [&](const std::string& key, const YAML::Node& node, const std::string& place) {
        if (const Section* section = find_section(key)) {
          if (node.IsNull()) return;
          if (!node.IsMap()) {
            throw ConfigError("{}: found no mapping, expected the settings of \"{}\"", place, key);
          }
          return read_section(*section, node, file, rank, given);
        }
        const Setting* setting = find_setting(key);
        if (!setting || !is_accelerate_key(*setting)) {
          throw_unknown(place, key, "", is_accelerate_key);
        }
        reject_second_name(given, *setting, key, place);
        const Value value = yaml_value(node, place);
        const bool is_unset =
            value.items.size() == 1 && value.items[0] == "-1" && setting->name == "num_processes";
        if (value.is_null || is_unset) return;
        given.push_back({setting, value, {rank, origin_text(place, key, *setting)}});
      });
}

// Before the keys that only such files have: they are not what is wrong.
void refuse_cloud(const YAML::Node& root, const std::string& file) {
  const YAML::Node environment = find_key(root, "compute_environment");
  if (!environment) return;
  const std::string place = file + ":" + std::to_string(environment.Mark().line + 1);
  canonical_text(
      {&get_setting("compute_environment"), yaml_value(environment, place), {Rank::kFile, place}});
}

bool has_accelerate_keys(const YAML::Node& root) {
  return find_key(root, "fsdp_config") || find_key(root, "distributed_type") ||
         find_key(root, "compute_environment");
}

fs::path file_in_folder(const fs::path& folder) {
  for (const char* name : {"fsdp_config.json", "fsdp_config.yaml", "config.yaml"}) {
    if (fs::exists(folder / name)) return folder / name;
  }
  throw ConfigError(
      "--fsdp_config: found no fsdp_config.json, fsdp_config.yaml or config.yaml in {}, expected "
      "one of them; name the file itself",
      folder.string());
}

// Nothing for a null that asks for nothing, as in TrainingArguments. An empty list is a value.
std::optional<Value> own_value(const Setting& setting, const YAML::Node& node,
                               const std::string& place) {
  Value value = yaml_value(node, place);
  // As TrainingArguments takes fsdp: words, or a list of them.
  if (setting.name == "fsdp" && node.IsSequence()) {
    if (value.is_null) return std::nullopt;
    value.items = {fmt::format("{}", fmt::join(value.items, " "))};
  }
  const bool is_unset = value.is_null && value.items.empty();
  if (!is_unset) return value;
  if (setting.null_means.empty()) return std::nullopt;
  return Value{.items = {std::string(setting.null_means)}};
}

}  // namespace

// Instead of a list of all its keys.
static void refuse_model_config(const YAML::Node& root, const fs::path& path) {
  if (!root["architectures"] || !root["model_type"]) return;
  throw ConfigError(
      "{}: found a model's configuration (\"architectures\", \"model_type\"), expected a file of "
      "settings; name the model's folder in model_name_or_path",
      path.string());
}

std::vector<Given> read_own_file(const fs::path& path) {
  std::vector<Given> given;
  std::vector<UnknownKey> unknown;
  const YAML::Node root = read_yaml_mapping(path);
  refuse_model_config(root, path);
  for_each_key(
      root, path.string(),
      [&](const std::string& key, const YAML::Node& node, const std::string& place) {
        // As TrainingArguments takes it: a file's name, or the settings themselves.
        if (key == "fsdp_config" && node.IsMap()) {
          return read_section(*find_section(key), node, path.string(), Rank::kFile, given);
        }
        const Setting* setting = find_setting(key);
        if (!setting || !is_own_key(*setting)) {
          return unknown.push_back({place, key, holds_settings(node)});
        }
        const std::optional<Value> value = own_value(*setting, node, place);
        if (!value) return;
        reject_second_name(given, *setting, key, place);
        given.push_back({setting, *value, {Rank::kFile, origin_text(place, key, *setting)}});
      });
  if (!unknown.empty()) throw_unknown(path.string(), unknown, is_own_key);
  return given;
}

std::vector<Given> read_accelerate_file(const fs::path& path, Rank rank) {
  const YAML::Node root = read_yaml_mapping(path);
  if (!find_key(root, "distributed_type")) {
    throw ConfigError(
        "{}: found no distributed_type, expected one of {}; add it (accelerate needs it too), or "
        "pass a file of other settings as --config",
        path.string(), expectation(get_setting("distributed_type")).substr(7));
  }
  std::vector<Given> given;
  refuse_cloud(root, path.string());
  read_accelerate_mapping(root, path.string(), rank, given);
  return given;
}

std::string flag_of_file(const fs::path& path) {
  const YAML::Node root = read_yaml_mapping(path);
  if (has_accelerate_keys(root)) return "--config_file";
  if (path.extension() == ".json" && is_deepspeed_json(read_yaml_json(path))) return "--deepspeed";
  return "--config";
}

std::vector<Given> read_fsdp_config(const std::string& path_or_text) {
  const bool is_text = path_or_text.starts_with('{');
  fs::path path = is_text ? "--fsdp_config" : path_or_text;
  if (!is_text && fs::is_directory(path)) path = file_in_folder(path);
  const YAML::Node root =
      is_text ? parse_yaml_mapping(path_or_text, path.string()) : read_yaml_mapping(path);
  std::vector<Given> given;
  if (has_accelerate_keys(root)) {
    read_accelerate_mapping(root, path.string(), Rank::kFile, given);
  } else {
    read_section(*find_section("fsdp_config"), root, path.string(), Rank::kFile, given);
  }
  return given;
}

fs::path default_accelerate_file(const std::function<std::string(const std::string&)>& variable) {
  fs::path home = variable("HF_HOME");
  if (home.empty()) {
    fs::path cache = variable("XDG_CACHE_HOME");
    if (cache.empty()) cache = fs::path(variable("HOME")) / ".cache";
    home = cache / "huggingface";
  }
  return home / "accelerate" / "default_config.yaml";
}

}  // namespace strata::config
