#include "strata/data/files/class_names.h"

#include <algorithm>

#include "strata/base/error.h"

namespace strata::data {
namespace {

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// The names of a feature, or of the elements of its lists: {"feature": ..., "_type": "List"}, and
// [...] in old files. Null: it is no class.
const Json* names_of(const Json& feature) {
  if (feature.is_array() && feature.size() == 1) return names_of(feature[0]);
  if (const Json* element = member(feature, "feature")) return names_of(*element);
  const Json* type = member(feature, "_type");
  return type != nullptr && *type == "ClassLabel" ? member(feature, "names") : nullptr;
}

}  // namespace

ClassNames read_class_names(std::string_view metadata) {
  ClassNames classes;
  Json json;
  try {
    json = parse_json(metadata, "huggingface");
  } catch (const FormatError&) {
    return classes;
  }
  const Json* info = member(json, "info");
  const Json* features = info == nullptr ? nullptr : member(*info, "features");
  if (features == nullptr || !features->is_object()) return classes;
  for (const auto& [column, feature] : features->items()) {
    const Json* names = names_of(feature);
    if (names == nullptr || !names->is_array() || names->empty()) continue;
    const auto is_text = [](const Json& name) { return name.is_string(); };
    if (!std::ranges::all_of(*names, is_text)) continue;
    classes.emplace(column, names->get<std::vector<std::string>>());
  }
  return classes;
}

}  // namespace strata::data
