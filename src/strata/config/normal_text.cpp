#include "strata/config/normal_text.h"

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::config {

std::string normal_text(const Setting& setting, const std::string& text) {
  return setting.normal == nullptr ? text : setting.normal(text);
}

std::string normal_json(const std::string& text) {
  try {
    const Json json = parse_json(text, "");
    return json == Json::object() ? "" : json.dump();
  } catch (const FormatError&) {
    return text;
  }
}

}  // namespace strata::config
