#include "strata/checkpoint/setting_text.h"

namespace strata::checkpoint {
namespace {

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "none";
  if (value.is_number_float()) return python_float_repr(value.get<double>());
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ",") + text_of(item);
  return text;
}

}  // namespace

std::string setting_text(const Json& settings, std::string_view name) {
  const auto found = settings.find(std::string(name));
  return found == settings.end() ? "" : text_of(*found);
}

}  // namespace strata::checkpoint
