// Puts the parts of the table together and finds records by name.
#include "strata/config/settings/table.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"

namespace strata::config {
namespace {

std::vector<Setting> build_table() {
  return joined({file_and_model_settings, row_settings, adapter_settings, training_settings,
                 preference_settings, classification_settings, sharding_settings, launch_settings,
                 accelerate_file_settings, accelerate_section_settings,
                 unsupported_trainer_settings, unsupported_sft_settings,
                 unsupported_lora_settings});
}

using Index = std::map<std::string, const Setting*, std::less<>>;

Index build_index() {
  Index index;
  auto add = [&](std::string_view name, const Setting& setting) {
    if (!index.emplace(name, &setting).second) {
      throw InternalError("settings table: found \"{}\" twice, expected every name once", name);
    }
  };
  for (const Setting& setting : settings_table()) {
    add(setting.name, setting);
    for (std::string_view alias : setting.aliases) add(alias, setting);
  }
  return index;
}

}  // namespace

std::vector<Setting> with_group(std::string_view group, std::string_view peer,
                                std::vector<Setting> settings) {
  for (Setting& setting : settings) {
    setting.group = group;
    if (setting.peer.empty()) setting.peer = peer;
  }
  return settings;
}

std::vector<Setting> joined(std::initializer_list<std::vector<Setting> (*)()> parts) {
  std::vector<Setting> all;
  for (const auto part : parts) std::ranges::move(part(), std::back_inserter(all));
  return all;
}

std::span<const Setting> settings_table() {
  static const std::vector<Setting> table = build_table();
  return table;
}

std::string normalized_name(std::string_view name) {
  std::string result(name);
  std::ranges::replace(result, '-', '_');
  return result;
}

const Setting* find_setting(std::string_view name) {
  static const Index index = build_index();
  auto found = index.find(normalized_name(name));
  return found == index.end() ? nullptr : found->second;
}

const Setting* find_setting(std::span<const Setting> table, std::string_view name) {
  const std::string wanted = normalized_name(name);
  for (const Setting& setting : table) {
    const auto& aliases = setting.aliases;
    if (setting.name == wanted || std::ranges::find(aliases, wanted) != aliases.end()) {
      return &setting;
    }
  }
  return nullptr;
}

const Setting& get_setting(std::string_view name) {
  if (const Setting* setting = find_setting(name)) return *setting;
  throw InternalError("settings table: found no \"{}\", expected a record of it", name);
}

std::span<const std::string_view> choices_of(const Setting& setting) {
  const auto* field = std::get_if<ChoiceField>(&setting.field);
  return field != nullptr && setting.choices.empty() ? field->names : setting.choices;
}

Setting same_setting(std::string_view name, Field field) {
  Setting setting = get_setting(name);
  setting.field = field;
  setting.peer = {};
  return setting;
}

std::optional<std::string> closest_setting(std::string_view name, bool (*accept)(const Setting&)) {
  return closest_setting(settings_table(), name, accept);
}

std::optional<std::string> closest_setting(std::span<const Setting> table, std::string_view name,
                                           bool (*accept)(const Setting&)) {
  std::vector<std::string> names;
  for (const Setting& setting : table) {
    if (accept && !accept(setting)) continue;
    names.emplace_back(setting.name);
    for (std::string_view alias : setting.aliases) names.emplace_back(alias);
  }
  return closest(normalized_name(name), names);
}

}  // namespace strata::config
