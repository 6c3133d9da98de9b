#include "strata/models/layer_types.h"

#include <string>

#include "strata/base/error.h"

namespace strata::models {

std::optional<std::vector<bool>> read_layer_types(const ConfigReader& config,
                                                  int64_t num_hidden_layers) {
  if (!config.has("layer_types")) return std::nullopt;
  const Json& list = config.at("layer_types");
  if (!list.is_array() || static_cast<int64_t>(list.size()) != num_hidden_layers) {
    throw FormatError(
        "config.json: found layer_types = {}, expected a list of num_hidden_layers = {} texts; fix "
        "the file",
        list.dump(), num_hidden_layers);
  }
  std::vector<bool> has_window;
  for (const Json& entry : list) {
    const std::string kind = entry.is_string() ? entry.get<std::string>() : entry.dump();
    if (kind != "full_attention" && kind != "sliding_attention") {
      throw ConfigError(
          "config.json: found \"{}\" in layer_types, expected full_attention or sliding_attention; "
          "use a checkpoint with such layers",
          kind);
    }
    has_window.push_back(kind == "sliding_attention");
  }
  return has_window;
}

}  // namespace strata::models
