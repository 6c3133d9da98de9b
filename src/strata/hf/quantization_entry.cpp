#include "strata/hf/quantization_entry.h"

#include <algorithm>
#include <cstdint>

#include "strata/base/error.h"

namespace strata::hf {

const Json* value_of(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

const Json* quantization_entry(const Json& model_config) {
  const Json* entry = value_of(model_config, "quantization_config");
  if (entry != nullptr) return entry;
  const Json* text = value_of(model_config, "text_config");
  return text == nullptr ? nullptr : value_of(*text, "quantization_config");
}

std::string text_of(const Json& json, const char* key) {
  const Json* value = value_of(json, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

bool is_size(const Json& n) {
  return n.is_number_integer() && n.get<int64_t>() > 0 && n.get<int64_t>() < (int64_t{1} << 31);
}

void refuse_value(const std::string& key, const Json& value, std::string_view expected) {
  throw ConfigError(
      "config.json: quantization_config: {}: found {}, expected {}; use a checkpoint of 16 bits",
      key, dump_python(value, -1), expected);
}

void require_text(const Json& entry, const char* key, std::initializer_list<const char*> expected) {
  const Json* value = value_of(entry, key);
  if (value == nullptr) return;
  const bool is_known = std::ranges::any_of(
      expected, [&](const char* text) { return *value == Json(std::string(text)); });
  if (!is_known) refuse_value(key, *value, *expected.begin());
}

void erase_quantization(Json& model_config) {
  constexpr const char* kEntry = "quantization_config";
  model_config.erase(kEntry);
  const auto text = model_config.find("text_config");
  if (text != model_config.end() && text->is_object()) text->erase(kEntry);
}

void require_untransformed(const Json& entry) {
  const Json* transforms = value_of(entry, "transform_config");
  if (transforms != nullptr && !transforms->empty()) {
    refuse_value("transform_config", *transforms, "none");
  }
  const Json* sparsity = value_of(entry, "sparsity_config");
  if (sparsity == nullptr || sparsity->empty()) return;
  if (text_of(*sparsity, "format") != "dense") refuse_value("sparsity_config", *sparsity, "none");
}

}  // namespace strata::hf
