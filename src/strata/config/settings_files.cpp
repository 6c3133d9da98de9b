// Readers of the settings files.
#include "strata/config/settings_files.h"

#include "strata/base/error.h"
#include "strata/config/yaml_reader.h"

namespace strata::config {
namespace {

namespace fs = std::filesystem;

bool is_accelerate_key(const Setting& setting) {
  return setting.in_accelerate_file || setting.name == "fsdp_config";
}
bool is_fsdp_key(const Setting& setting) {
  return setting.name.starts_with("fsdp_") && setting.name != "fsdp_config";
}
bool is_dynamo_key(const Setting& setting) { return setting.name.starts_with("dynamo_"); }
bool is_own_key(const Setting& setting) { return setting.name != "config"; }

[[noreturn]] void throw_unknown(const std::string& place, const std::string& key,
                                std::string_view where, bool (*accept)(const Setting&)) {
  auto near = closest_setting(key, accept);
  throw ConfigError("{}: found the unknown key \"{}\"{}, expected a known setting; {}", place, key,
                    where, near ? "did you mean " + *near + "?" : "remove it");
}

void reject_second_name(const std::vector<Given>& given, const Setting& setting,
                        const std::string& key, const std::string& place) {
  for (const Given& other : given) {
    if (other.setting != &setting) continue;
    throw ConfigError("{}: found \"{}\" beside {}, which sets the same, expected one; remove one",
                      place, key, other.origin.source);
  }
}

std::string origin_text(const std::string& place, const std::string& key, const Setting& setting) {
  return key == setting.name ? place : place + " (" + key + ")";
}

// The setting that a key of the section names: the prefix may be missing there.
const Setting* find_fsdp_key(const std::string& key) {
  const Setting* setting = find_setting(key.starts_with("fsdp_") ? key : "fsdp_" + key);
  if (!setting) setting = find_setting(key);  // min_num_params and the like
  return setting && is_fsdp_key(*setting) ? setting : nullptr;
}

void read_fsdp_section(const YAML::Node& section, const std::string& file, Rank rank,
                       std::vector<Given>& given) {
  for_each_key(section, file,
               [&](const std::string& key, const YAML::Node& node, const std::string& place) {
                 const Setting* setting = find_fsdp_key(key);
                 if (!setting) throw_unknown(place, key, " in fsdp_config", is_fsdp_key);
                 reject_second_name(given, *setting, key, place);
                 Value value = yaml_value(node, place);
                 if (value.is_null) return;
                 given.push_back({setting, value, {rank, origin_text(place, key, *setting)}});
               });
}

void read_dynamo_section(const YAML::Node& section, const std::string& file, Rank rank,
                         std::vector<Given>& given) {
  for_each_key(
      section, file, [&](const std::string& key, const YAML::Node& node, const std::string& place) {
        const Setting* setting = find_setting(key.starts_with("dynamo_") ? key : "dynamo_" + key);
        if (!setting) throw_unknown(place, key, " in dynamo_config", is_dynamo_key);
        given.push_back({setting, yaml_value(node, place), {rank, place}});
      });
}

void read_accelerate_mapping(const YAML::Node& root, const std::string& file, Rank rank,
                             std::vector<Given>& given) {
  for_each_key(
      root, file, [&](const std::string& key, const YAML::Node& node, const std::string& place) {
        if (key == "fsdp_config" || key == "dynamo_config") {
          if (node.IsNull()) return;
          if (!node.IsMap()) {
            throw ConfigError("{}: found no mapping, expected the settings of \"{}\"", place, key);
          }
          return key == "fsdp_config" ? read_fsdp_section(node, file, rank, given)
                                      : read_dynamo_section(node, file, rank, given);
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

bool has_accelerate_keys(const YAML::Node& root) {
  return root["fsdp_config"] || root["distributed_type"] || root["compute_environment"];
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

}  // namespace

std::vector<Given> read_own_file(const fs::path& path) {
  std::vector<Given> given;
  for_each_key(
      read_yaml_mapping(path), path.string(),
      [&](const std::string& key, const YAML::Node& node, const std::string& place) {
        const Setting* setting = find_setting(key);
        if (!setting || !is_own_key(*setting)) throw_unknown(place, key, "", is_own_key);
        reject_second_name(given, *setting, key, place);
        given.push_back(
            {setting, yaml_value(node, place), {Rank::kFile, origin_text(place, key, *setting)}});
      });
  return given;
}

std::vector<Given> read_accelerate_file(const fs::path& path, Rank rank) {
  const YAML::Node root = read_yaml_mapping(path);
  if (!root["distributed_type"]) {
    throw ConfigError(
        "{}: found no distributed_type, expected one of {}; add it (accelerate needs it too)",
        path.string(), expectation(get_setting("distributed_type")).substr(7));
  }
  std::vector<Given> given;
  read_accelerate_mapping(root, path.string(), rank, given);
  return given;
}

std::string flag_of_file(const fs::path& path) {
  return has_accelerate_keys(read_yaml_mapping(path)) ? "--config_file" : "--config";
}

std::vector<Given> read_fsdp_config(fs::path path) {
  if (fs::is_directory(path)) path = file_in_folder(path);
  const YAML::Node root = read_yaml_mapping(path);
  std::vector<Given> given;
  if (has_accelerate_keys(root)) {
    read_accelerate_mapping(root, path.string(), Rank::kFile, given);
  } else {
    read_fsdp_section(root, path.string(), Rank::kFile, given);
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
