#include "strata/config/normal_text.h"

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::config {

std::string normal_text(const Setting& setting, const std::string& text) {
  return setting.normal == nullptr ? text : setting.normal(text);
}

namespace {

// `dump` writes an object that has keys.
std::string normal_object(const std::string& text, std::string (*dump)(const Json&)) {
  try {
    const Json json = parse_json(text, "");
    return json == Json::object() ? "" : dump(json);
  } catch (const FormatError&) {
    return text;
  }
}

}  // namespace

std::string normal_json(const std::string& text) {
  return normal_object(text, [](const Json& json) { return nlohmann::json(json).dump(); });
}

std::string normal_patterns(const std::string& text) {
  return normal_object(text, [](const Json& json) { return json.dump(); });
}

}  // namespace strata::config
