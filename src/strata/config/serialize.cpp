// Walks the table; new settings are included without a change here.
#include "strata/config/serialize.h"

#include <cstdint>

#include <fmt/format.h>

#include "strata/base/json.h"
#include "strata/config/field_text.h"

namespace strata::config {

std::string to_json_text(const RunConfig& config) {
  Json object = Json::object();
  for (const Setting& setting : settings_table()) {
    if (setting.kind != Kind::kBound) continue;
    object[std::string(setting.name)] = field_json(setting, config);
  }
  return dump_python(object, /*indent=*/2, /*sort_keys=*/false);
}

std::string settings_hash(const RunConfig& config) {
  // FNV-1a, 64 bits: guards against mistakes, not against attackers.
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&](std::string_view text) {
    for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3u;
    hash = (hash ^ 0xffu) * 0x100000001b3u;  // no text contains this byte
  };
  for (const Setting& setting : settings_table()) {
    if (setting.kind != Kind::kBound || setting.scope == Scope::kLaunch) continue;
    mix(setting.name);
    mix(field_text(setting, config));
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace strata::config
